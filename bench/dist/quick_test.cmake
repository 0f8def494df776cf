# Tests bench_comm: cmake -DPROGRAM=<bench_comm> -DOUT=<folder> -DMPIRUN=<words> -DPYTHON=<python3> -DPROGRAMS=<folder>
# -P quick_test.cmake. Without MPIRUN one rank must be refused. PYTHON adds predict.py --on-paper.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
fails(2 "mpirun -n 2 --bind-to none bench_comm")
if(NOT MPIRUN)
  return()
endif()
set(PROGRAM ${MPIRUN} -n 2 ${PROGRAM})
execute_process(COMMAND ${PROGRAM} --seconds 0 --largest 262144 --commit test --json ${OUT}/run.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "2 ranks, 2 on a machine" "all_to_all +8 " "all_reduce +262144 ")
read_results(${OUT}/run.json json device ranks ranks_per_node)
has_members("${json}" 30 collectives)  # five at each of 8, 64 ... 262144 bytes
foreach(i RANGE 29)
  positive("${json}" "collectives;${i};seconds" median)
endforeach()
fails(2 "--largest is 8. It must be from 4096" --largest 8)
if(PYTHON)
  execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/predict.py ${PROGRAMS} --on-paper gpt2-xl
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
  prints("${text}" "backward, ms +53.32 " "hidden behind backward, ms +36.29 +53.08 +50.88 +25.25"
         "messages of a rank +6664 +29988 +147312 "
         "loss and signals, ms +0.06 +1.18 +20.38 +327.59" "the step, ms +102.57 +401.33 +1041.48 +8831.75"
         "efficiency, % +94.28 +24.10 +9.29 +1.09" "all_gather of parameters, ms +28.47 +208.16 +643.69 "
         "peak of a rank, GB +33.78 +33.78 +33.81 +34.31")
endif()
