# Configures, builds and runs one consumer project in an empty folder.
#   KIND          find_package or add_subdirectory
#   SOURCE BUILD  scanjit's source and build folders
#   WORK          a folder of this test's own
#   CONFIG GENERATOR COMPILER LAUNCHER FLAGS   as scanjit itself was built

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(options -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
if(LAUNCHER)
  list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()

if(KIND STREQUAL find_package)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix --config ${CONFIG})
  # What is installed must be complete and bring nothing along.
  file(GLOB_RECURSE headers ${WORK}/prefix/include/*.hpp ${WORK}/prefix/include/*.h)
  foreach(header IN LISTS headers)
    file(READ ${header} text)
    if(text MATCHES "#include *[<\"](spdlog|fmt|nlohmann|cuda|nvrtc|CLI)")
      message(FATAL_ERROR "${header} includes ${CMAKE_MATCH_1}: a user of the library does not have it")
    endif()
  endforeach()
  file(GLOB_RECURSE exported ${WORK}/prefix/*.cmake)
  foreach(file IN LISTS exported)
    file(READ ${file} text)
    if(text MATCHES "(spdlog|fmt::|nlohmann|Catch2|CLI11|${SOURCE}|${BUILD})")
      message(FATAL_ERROR "${file} names ${CMAKE_MATCH_1}: a user of the library does not have it")
    endif()
  endforeach()
  list(APPEND options -DCMAKE_PREFIX_PATH=${WORK}/prefix)
else()
  list(APPEND options -DSCANJIT_SOURCE=${SOURCE})
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/${KIND} -B ${WORK}/build ${options})
run(${CMAKE_COMMAND} --build ${WORK}/build --target example --parallel 2)

# Without a GPU it says so and ends well.
run(${CMAKE_COMMAND} -E env SCANJIT_CACHE_DIR=none ${WORK}/build/example)
message(STATUS "${output}")

if(KIND STREQUAL find_package)
  run(ldd ${WORK}/build/example)
  if(output MATCHES "lib(fmt|spdlog|cuda|nvrtc|scanjit)")
    message(FATAL_ERROR "a program with scanjit inside needs lib${CMAKE_MATCH_1}:\n${output}")
  endif()
endif()
