# Writes OUT, program_version() with the git commit of SOURCE: "+" after it if a tracked file is changed, none without
# git. Runs in each build; an equal file stays.
set(commit ${VERSION})
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    string(APPEND commit " ${hash}")
    if(changed)
      string(APPEND commit "+")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include <tapegrad/models/apps/command.h>\n
std::string tg::apps::program_version() { return \"${commit}\"; }\n")
