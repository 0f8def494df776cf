# Target and test `docs`: the API pages of the public headers, in build/<preset>/docs/html. They need Doxygen; without it
# there is neither.
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
tg_quoted(docs_input core ops autograd models cpu/kernel.h cpu/runtime/thread_pool.h cpu/unary.h README.md CONTRIBUTING.md core/README.md ops/README.md autograd/README.md
          cpu/README.md cuda/README.md tests/emulator/README.md models/README.md bench/README.md tests/README.md cmake/README.md)
tg_quoted(docs_private
          core/backend/allocator.h core/chain.h core/io/json.h core/engine/run_node.h core/util/slab.h core/engine/trace.h  # the engine's own
          core/plan/executable.h core/plan/plan.h core/plan/rewrite.h core/plan/run_group.h core/profile/profiler_record.h
          models/apps models/examples models/config/fields.h)
configure_file(cmake/Doxyfile.in ${docs_out}/Doxyfile @ONLY)
set(docs_command ${CMAKE_COMMAND} -DDOXYGEN=${TG_DOXYGEN} -DDOCS=${docs_out} -P ${PROJECT_SOURCE_DIR}/cmake/run_doxygen.cmake)
add_custom_target(docs COMMAND ${docs_command} COMMENT "API pages: ${docs_out}/html/index.html" VERBATIM)
if(TG_TESTS)
  add_test(NAME docs COMMAND ${docs_command})
  set_tests_properties(docs PROPERTIES LABELS cpu)
endif()
