# How the parts of scanjit become targets.
#
# One object library per folder of src/. A folder sees another folder's headers only through
# `DEPENDS`: each gets an include root of its own that holds nothing but a link to itself, so that
# `#include "os/file_system.hpp"` fails to compile in a folder that may not use os.

add_library(scanjit_warnings INTERFACE)
target_compile_options(scanjit_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
  $<$<BOOL:${SCANJIT_WARNINGS_AS_ERRORS}>:-Werror>
  # g++ 12 sees overlapping copies in string code that are not there (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)

# spdlog and fmt header-only: what is built needs no shared library beyond libc.
add_library(scanjit_spdlog INTERFACE)
target_compile_definitions(scanjit_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_include_directories(scanjit_spdlog SYSTEM INTERFACE
  $<TARGET_PROPERTY:spdlog::spdlog_header_only,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(scanjit_spdlog INTERFACE fmt::fmt-header-only)

set_property(GLOBAL PROPERTY SCANJIT_FOLDERS "")

# scanjit_folder(NAME SOURCES a.cpp ... [DEPENDS core os ...] [LIBRARIES target ...])
function(scanjit_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  set(root ${PROJECT_BINARY_DIR}/include_roots/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${name} SYMBOLIC)
  add_library(scanjit_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(scanjit_${name} PUBLIC ${root} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(scanjit_${name} PRIVATE scanjit_warnings ${ARG_LIBRARIES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_include_directories(scanjit_${name} PRIVATE ${PROJECT_BINARY_DIR}/include_roots/${dependency})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY SCANJIT_FOLDERS ${name})
endfunction()

# scanjit_embed(TARGET SYMBOL ROOT FILES a b ...): the files' bytes, compiled into TARGET as
# `extern const scanjit::EmbeddedFile SYMBOL[]; extern const std::size_t SYMBOL_count;`
function(scanjit_embed target symbol)
  cmake_parse_arguments(ARG "" "ROOT" "FILES" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cpp)
  set(paths ${ARG_FILES})
  list(TRANSFORM paths PREPEND ${ARG_ROOT}/)
  string(REPLACE ";" "|" files "${ARG_FILES}")
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DSYMBOL=${symbol} -DROOT=${ARG_ROOT} "-DFILES=${files}"
            -P ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake
    DEPENDS ${paths} ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
