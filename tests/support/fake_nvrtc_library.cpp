// A libnvrtc.so that compiles nothing: of any source that scanjit generates it makes a well-formed
// cubin whose code is a hash of the source, the options and its own version, so that a wrong kernel
// shows. For programs that are pointed to it by SCANJIT_NVRTC_LIBRARY. In the environment:
//
//   SCANJIT_FAKE_NVRTC_VERSION=13.0.88  what it says it is
//   SCANJIT_FAKE_NVRTC_US=20000         how long a compilation takes
//   SCANJIT_FAKE_NVRTC_COUNT=FILE       gets a line, "entry hash", for each compilation
//
// A program that opens it may also call the functions at the end of this file.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/hash.hpp"
#include "cuda/nvrtc.hpp"

namespace scanjit::cuda {
struct nvrtcProgram_st {
  std::string source, log, ptx, cubin;
};
}  // namespace scanjit::cuda

namespace {

using namespace scanjit::cuda;

std::mutex mutex;  // of all below
std::set<nvrtcProgram> programs;
long calls = 0, fail_at = 0;
nvrtcResult fail_with = NVRTC_SUCCESS;

/// Counts a call; what it must fail with.
nvrtcResult begin_call() {
  const std::lock_guard lock(mutex);
  return ++calls == fail_at ? fail_with : NVRTC_SUCCESS;
}
#define FAIL_IF_ASKED \
  if (const nvrtcResult asked = begin_call(); asked != NVRTC_SUCCESS) return asked

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::string version() { return variable("SCANJIT_FAKE_NVRTC_VERSION", "13.0.88"); }

/// The name before "(const __grid_constant__", as the generated entry has it; "" in other sources.
std::string entry_of(const std::string& source) {
  const std::size_t end = source.find("(const __grid_constant__");
  if (end == std::string::npos) return {};
  const std::size_t begin = source.rfind('\n', end);
  return source.substr(begin + 1, end - begin - 1);
}

template <class T>
void put(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// A 64-bit ELF file of three sections: none, names, and the code of the entry.
std::string elf_of(const std::string& entry, const std::string& code) {
  const std::string names = std::string(1, '\0') + ".shstrtab" + '\0' + ".text." + entry + '\0';
  constexpr std::size_t kHeader = 64, kSection = 64;
  const std::size_t code_at = kHeader + names.size();
  const std::size_t table = (code_at + code.size() + 7) / 8 * 8;
  std::string bytes(table + 3 * kSection, '\0');
  std::memcpy(bytes.data(),
              "\x7f"
              "ELF\x02\x01\x01",
              7);
  put(bytes, 40, static_cast<std::uint64_t>(table));
  put(bytes, 58, static_cast<std::uint16_t>(kSection));
  put(bytes, 60, std::uint16_t{3});
  put(bytes, 62, std::uint16_t{1});
  names.copy(bytes.data() + kHeader, names.size());
  code.copy(bytes.data() + code_at, code.size());
  const auto section = [&](std::size_t index, std::uint32_t name, std::uint64_t at,
                           std::uint64_t size) {
    put(bytes, table + index * kSection, name);
    put(bytes, table + index * kSection + 24, at);
    put(bytes, table + index * kSection + 32, size);
  };
  section(1, 1, kHeader, names.size());
  section(2, 11, code_at, code.size());
  return bytes;
}

nvrtcResult copy_out(const std::string& text, char* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVRTC_SUCCESS;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* nvrtcGetErrorString(nvrtcResult) { return "as the test asked"; }

EXPORTED nvrtcResult nvrtcVersion(int* major, int* minor) {
  FAIL_IF_ASKED;
  std::sscanf(version().c_str(), "%d.%d", major, minor);
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  FAIL_IF_ASKED;
  *count = 1;
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  FAIL_IF_ASKED;
  *archs = 90;
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int,
                                        const char* const*, const char* const*) {
  FAIL_IF_ASKED;
  *program = new nvrtcProgram_st{source, {}, {}, {}};
  const std::lock_guard lock(mutex);
  programs.insert(*program);
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  const std::lock_guard lock(mutex);
  programs.erase(*program);
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                         const char* const* options) {
  FAIL_IF_ASKED;
  program->ptx =
      "// Compiler Build ID: CL-FAKE\n// Cuda compilation tools, release 1.2, V" + version() + "\n";
  const std::string entry = entry_of(program->source);
  if (entry.empty()) return NVRTC_SUCCESS;  // the empty program that tells the version
  std::string all = version() + '\n' + program->source;
  for (int i = 0; i < count; ++i) all += std::string("\n") + options[i];
  const std::string code = scanjit::sha256_hex(all);
  program->cubin = elf_of(entry, code);
  program->log = "ptxas info    : Compiling entry function '" + entry +
                 "' for 'sm_90a'\nptxas info    : Used 40 registers, 0 bytes smem\n";
  if (const std::string path = variable("SCANJIT_FAKE_NVRTC_COUNT", ""); !path.empty()) {
    const std::string line = entry + " " + code + "\n";
    const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      return NVRTC_ERROR_OUT_OF_MEMORY;
    ::close(file);
  }
  ::usleep(static_cast<useconds_t>(std::stoul(variable("SCANJIT_FAKE_NVRTC_US", "0"))));
  return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, std::size_t* bytes) {
  FAIL_IF_ASKED;
  *bytes = program->ptx.size() + 1;
  return NVRTC_SUCCESS;
}
EXPORTED nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* out) {
  FAIL_IF_ASKED;
  return copy_out(program->ptx, out);
}
EXPORTED nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  FAIL_IF_ASKED;
  *bytes = program->cubin.size();
  return NVRTC_SUCCESS;
}
EXPORTED nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  FAIL_IF_ASKED;
  std::memcpy(out, program->cubin.data(), program->cubin.size());
  return NVRTC_SUCCESS;
}
EXPORTED nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  FAIL_IF_ASKED;
  *bytes = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
EXPORTED nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) {
  FAIL_IF_ASKED;
  return copy_out(program->log, out);
}

/// The `nth` call from now (1: the next; 0: none) that returns a result returns `result`.
EXPORTED void scanjit_fake_nvrtc_fail_call(long nth, int result) {
  const std::lock_guard lock(mutex);
  fail_at = nth == 0 ? 0 : calls + nth;
  fail_with = static_cast<nvrtcResult>(result);
}
EXPORTED long scanjit_fake_nvrtc_calls() {
  const std::lock_guard lock(mutex);
  return calls;
}
/// Programs that were made and not destroyed.
EXPORTED long scanjit_fake_nvrtc_live() {
  const std::lock_guard lock(mutex);
  return static_cast<long>(programs.size());
}
