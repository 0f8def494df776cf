# Target `demo`: trains a byte-level GPT for a minute on stories from a grammar, and prints a story that it writes.
set(demo_out ${PROJECT_BINARY_DIR}/demo)
set(demo_text ${PROJECT_BINARY_DIR}/stories.txt)
add_custom_target(demo
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${demo_out}  # left by an interrupted demo
  COMMAND ${CMAKE_COMMAND} -DOUT=${demo_text} -P ${PROJECT_SOURCE_DIR}/cmake/stories.cmake
  COMMAND tg_app train --preset demo --out ${demo_out} --data ${demo_text}
  COMMAND ${CMAKE_COMMAND} -E echo ""
  COMMAND ${CMAKE_COMMAND} -E echo "The model writes:"
  COMMAND tg_app generate --model ${demo_out} --prompt "There was a" --max-tokens 200 --temperature 0.7
          --seed 1
  COMMAND ${CMAKE_COMMAND} -E echo ""
  COMMAND ${CMAKE_COMMAND} -E echo "Again, with your prompt and seed:"
  COMMAND ${CMAKE_COMMAND} -E echo
          "  $<TARGET_FILE:tg_app> generate --model ${demo_out} --prompt \"Ada was a\" --seed 2"
  COMMENT "Training a small GPT on short stories"
  DEPENDS tg_app
  USES_TERMINAL VERBATIM)
