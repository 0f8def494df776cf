# install + export: find_package(tapegrad CONFIG) gives tapegrad::tapegrad, with headers as <tapegrad/...>.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS tg_core tg_engine tg_models tapegrad EXPORT tapegradTargets)
install(EXPORT tapegradTargets NAMESPACE tapegrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tapegrad)
install(DIRECTORY core ops autograd models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapegrad
        FILES_MATCHING PATTERN "*.h" PATTERN apps EXCLUDE PATTERN examples EXCLUDE PATTERN tapegrad.h EXCLUDE)
install(FILES models/tapegrad.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapegrad)
# What kernels outside of the library include.
set(kernel_headers cpu/function_ref.h cpu/isa.h cpu/kernel.h cpu/loop.h cpu/map.h cpu/rows.h cpu/thread_pool.h cpu/unary.h)
get_property(tg_kernels GLOBAL PROPERTY TAPEGRAD_KERNELS)
if(tg_kernels)
  list(APPEND kernel_headers cuda/kernel.h cuda/unary.h cuda/device/device.h cuda/device/grid_loop.h cuda/device/kernel.h
       cuda/device/map.h cuda/device/numeric.h cuda/device/ptx.h cuda/device/row_loop.h cuda/device/vec.h cuda/runtime/api.h cuda/runtime/errors.h
       cuda/runtime/runtime.h)
endif()
if(tg_kernels STREQUAL "emulator")
  list(APPEND kernel_headers cuda/simt/emulator.h cuda/simt/language.h cuda/simt/runtime.h cuda/simt/types.h)
endif()
foreach(header IN LISTS kernel_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapegrad/${folder})
endforeach()
# For builds without CMake; paths go by where the file lies.
set(tapegrad_pc_libs)
if(TG_HAS_CUDA)
  set(tapegrad_pc_libs "${CUDA_cudart_static_LIBRARY} -lrt")
endif()
if(TG_HAS_CUDA OR TG_CUDA STREQUAL "EMULATE")
  string(APPEND tapegrad_pc_libs " -ldl")
endif()
file(RELATIVE_PATH tapegrad_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/tapegrad.pc.in ${PROJECT_BINARY_DIR}/tapegrad.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tapegrad.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TG_APPS)
  install(TARGETS tg_app DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
configure_package_config_file(cmake/tapegradConfig.cmake.in ${PROJECT_BINARY_DIR}/tapegradConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tapegrad)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapegradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tapegradConfig.cmake ${PROJECT_BINARY_DIR}/tapegradConfigVersion.cmake cmake/tapegradKernels.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tapegrad)
