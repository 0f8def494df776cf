# Target and test `docs`: the API pages of the public headers, in build/<preset>/docs/html. Only with Doxygen.
find_program(TG_DOXYGEN doxygen)
mark_as_advanced(TG_DOXYGEN)
if(NOT TG_DOXYGEN OR NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

function(tg_quoted out)
  list(TRANSFORM ARGN PREPEND "\"${PROJECT_SOURCE_DIR}/")
  list(TRANSFORM ARGN APPEND "\"")
  list(JOIN ARGN " " text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

set(docs_out ${PROJECT_BINARY_DIR}/docs)
include(cmake/public_headers.cmake)
tg_reached_headers(docs_headers ${PROJECT_BINARY_DIR}/include/tapegrad ${TG_PUBLIC_HEADERS})
list(TRANSFORM docs_headers REPLACE "^tapegrad.h$" "models/tapegrad.h")
foreach(header IN LISTS docs_headers)  # a header without "@file" is internal
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} page REGEX "^/// @file" LIMIT_COUNT 1)
  if(NOT page)
    list(REMOVE_ITEM docs_headers ${header})
  endif()
endforeach()
tg_quoted(docs_input ${docs_headers} README.md CONTRIBUTING.md core/README.md ops/README.md autograd/README.md
          cpu/README.md cpu/gemm/README.md cuda/README.md tests/emulator/README.md models/README.md bench/README.md
          tests/README.md cmake/README.md)
configure_file(cmake/Doxyfile.in ${docs_out}/Doxyfile @ONLY)
set(docs_command ${CMAKE_COMMAND} -DDOXYGEN=${TG_DOXYGEN} -DDOCS=${docs_out}
    -P ${PROJECT_SOURCE_DIR}/cmake/run_doxygen.cmake)
add_custom_target(docs COMMAND ${docs_command} COMMENT "API pages: ${docs_out}/html/index.html" VERBATIM)
if(TG_TESTS)
  add_test(NAME docs COMMAND ${docs_command})
  set_tests_properties(docs PROPERTIES LABELS cpu)
endif()
