# Runs the task pages:
#   cmake -DROOT=<repository> -DBIN=<tapegrad's programs> -DPROGRAMS=<the pages' programs> -DWORK=<folder>
#         -P pages.cmake
# A task page is any page but a README.md. Its blocks of shell and its programs run in order in a folder
# that holds input.txt and tiny models in the format of Hugging Face.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/page_blocks.cmake)
file(READ ${ROOT}/tests/data/prose.txt prose)
file(GLOB models ${ROOT}/tests/data/huggingface/*)
set(ENV{PATH} "${BIN}:$ENV{PATH}")

function(run_block kind number text)
  if(kind STREQUAL "sh")
    file(WRITE ${WORK}/block.sh "${text}")
    set(command bash -e ${WORK}/block.sh)
  else()
    set(command ${PROGRAMS}/${page_name}_${number})
  endif()
  execute_process(COMMAND ${command} WORKING_DIRECTORY ${WORK}/here RESULT_VARIABLE status
                  OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${page}: ${kind} block ${number} ended with ${status}:\n${text}\n${out}")
  endif()
  set_property(GLOBAL APPEND PROPERTY blocks_run ${page})
endfunction()

file(GLOB_RECURSE pages RELATIVE ${ROOT} ${ROOT}/core/*.md ${ROOT}/ops/*.md ${ROOT}/autograd/*.md ${ROOT}/cpu/*.md
     ${ROOT}/cuda/*.md ${ROOT}/models/*.md ${ROOT}/bench/*.md)
list(FILTER pages EXCLUDE REGEX "README.md$")
foreach(page IN LISTS pages)
  file(REMOVE_RECURSE ${WORK})
  file(WRITE ${WORK}/here/input.txt "${prose}")
  file(COPY ${models} DESTINATION ${WORK}/here)
  string(MAKE_C_IDENTIFIER "${page}" page_name)
  page_blocks(${ROOT}/${page} run_block)
endforeach()
get_property(blocks GLOBAL PROPERTY blocks_run)
list(LENGTH blocks count)
if(count EQUAL 0)
  message(FATAL_ERROR "no task page with a block to run was found below ROOT='${ROOT}'")
endif()
list(LENGTH pages pages)
message(STATUS "${count} blocks of ${pages} pages ran")
