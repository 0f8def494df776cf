# cmake -DDOXYGEN=<program> -DDOCS=<folder of the Doxyfile> -P cmake/run_doxygen.cmake. Every warning is an error,
# except for undocumented class members.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${DOCS}/html)
execute_process(COMMAND ${DOXYGEN} ${DOCS}/Doxyfile OUTPUT_VARIABLE log ERROR_VARIABLE log COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[^\n]*warning: Member [^\n]* of (class|struct) [^\n]* is not documented[.]\n" "" log "${log}")
if(NOT log STREQUAL "")
  message(FATAL_ERROR "Doxygen finds mistakes in public comments:\n${log}")
elseif(NOT EXISTS ${DOCS}/html/namespacetg.html)
  message(FATAL_ERROR "Doxygen found no public header: ${DOCS}/html has no page of namespace tg")
endif()
