# Target `demo`: trains a byte-level GPT on this repository in under a minute, then generates code.
set(demo_data)
foreach(folder core autograd ops cpu models)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.h ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(APPEND demo_data ${files})
endforeach()
list(SORT demo_data)
set(demo_out ${PROJECT_BINARY_DIR}/demo)
set(demo_prompt "// Softmax over the last dimension: ")
add_custom_target(demo
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${demo_out}  # of an interrupted demo
  COMMAND tg_app train --preset demo --out ${demo_out} --data ${demo_data}
  COMMAND ${CMAKE_COMMAND} -E echo ""
  COMMAND ${CMAKE_COMMAND} -E echo "The model writes:"
  COMMAND tg_app generate --model ${demo_out} --prompt "${demo_prompt}" --max-tokens 400 --temperature 0.7 --seed 1
  COMMAND ${CMAKE_COMMAND} -E echo ""
  COMMAND ${CMAKE_COMMAND} -E echo "Again, with a prompt and a seed of your own:"
  COMMAND ${CMAKE_COMMAND} -E echo "  $<TARGET_FILE:tg_app> generate --model ${demo_out} --prompt \"#include\" --seed 2"
  COMMENT "Training a small GPT on the sources of this repository"
  DEPENDS tg_app
  USES_TERMINAL VERBATIM)
