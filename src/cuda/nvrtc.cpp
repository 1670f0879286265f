#include "cuda/nvrtc.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "cuda/nvrtc_search.hpp"

namespace scanjit::cuda {
namespace {

Result<NvrtcApi> fill_table(const os::DynamicLibrary& library) {
  NvrtcApi api;
#define SCANJIT_REQUIRED_FUNCTION(member, type, parameters)        \
  if (auto address = library.symbol(#member); address.ok()) {      \
    api.member = reinterpret_cast<decltype(api.member)>(*address); \
  } else {                                                         \
    return unsupported(library.path() + " has no " #member);       \
  }
  SCANJIT_NVRTC_FUNCTIONS(SCANJIT_REQUIRED_FUNCTION)
#undef SCANJIT_REQUIRED_FUNCTION
  return api;
}

// The word after `marker` in `text`.
std::string word_after(std::string_view text, std::string_view marker) {
  const std::size_t at = text.find(marker);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + marker.size());
  return std::string(text.substr(0, text.find_first_of(" \t\r\n,")));
}

// NVRTC itself tells its version only; the head of the PTX it writes tells the build too.
Status learn_build(NvrtcApi& api) {
  SCANJIT_ASSIGN_OR_RETURN(const NvrtcOutput ptx,
                           compile(api, "empty.cu", "", {}, {}, NvrtcTarget::kPtx));
  const std::string release = word_after(ptx.code, ", V");
  const std::string build = word_after(ptx.code, "Compiler Build ID: ");
  api.version =
      release.empty() ? std::to_string(api.major) + "." + std::to_string(api.minor) : release;
  api.build = build.empty() ? api.version : api.version + " " + build;
  return {};
}

void open_builtins(NvrtcApi& api, os::LibraryLoader& loader, os::FileSystem& files) {
  std::vector<std::string> folders = {os::parent_path(api.library)};
  if (const auto real = files.resolve(api.library); real.ok())
    folders.push_back(os::parent_path(*real));
  for (const std::string& folder : folders) {
    const std::string file = nvrtc_builtins_file(folder, api.major, api.minor, files);
    if (file.empty()) continue;
    if (const auto library = loader.open(file); library.ok()) {
      api.builtins = (*library)->path();
      return;
    }
  }
}

Result<NvrtcApi> open_file(const std::string& file, os::LibraryLoader& loader,
                           os::FileSystem& files) {
  SCANJIT_ASSIGN_OR_RETURN(const auto library, loader.open(file));
  SCANJIT_ASSIGN_OR_RETURN(NvrtcApi api, fill_table(*library));
  api.library = library->path();
  if (api.nvrtcVersion(&api.major, &api.minor) != NVRTC_SUCCESS)
    return unsupported(api.library + " tells no version");
  constexpr int kOldestMajor = 12;
  if (api.major < kOldestMajor) {
    return unsupported(api.library + " is version " + std::to_string(api.major) + "." +
                       std::to_string(api.minor) + ", 12.0 is the oldest that will do");
  }
  int count = 0;
  if (api.nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0) {
    api.archs.resize(static_cast<std::size_t>(count));
    if (api.nvrtcGetSupportedArchs(api.archs.data()) != NVRTC_SUCCESS) api.archs.clear();
  }
  open_builtins(api, loader, files);
  if (const Status status = learn_build(api); !status.ok()) {
    const std::string& log = status.details().compile_log;
    return unsupported(api.library +
                       " compiles nothing: " + (log.empty() ? status.message() : log));
  }
  return api;
}

// Owns a program for the length of a compilation.
class Program {
 public:
  explicit Program(const NvrtcApi& api) : api_(api) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (program_ != nullptr) api_.nvrtcDestroyProgram(&program_);
  }
  nvrtcProgram* address() { return &program_; }
  [[nodiscard]] nvrtcProgram get() const { return program_; }

 private:
  const NvrtcApi& api_;
  nvrtcProgram program_ = nullptr;
};

Status failure(const NvrtcApi& api, nvrtcResult result, const char* call) {
  const char* text = api.nvrtcGetErrorString(result);
  // Whatever ails NVRTC, this kernel did not compile; another one may.
  const ErrorCode code =
      result == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory : ErrorCode::kCompileFailed;
  return Status(code,
                std::string(call) + " failed: " + (text != nullptr ? text : "an unknown error"));
}

// NVRTC's sizes of texts count the zero at the end, those of cubins do not: `is_text`.
Result<std::string> fetch(const NvrtcApi& api, const Program& program,
                          nvrtcResult (*size_of)(nvrtcProgram, std::size_t*),
                          nvrtcResult (*get)(nvrtcProgram, char*), bool is_text, const char* call) {
  std::size_t bytes = 0;
  if (const nvrtcResult result = size_of(program.get(), &bytes); result != NVRTC_SUCCESS)
    return failure(api, result, call);
  std::string out(bytes, '\0');
  if (bytes > 0) {
    if (const nvrtcResult result = get(program.get(), out.data()); result != NVRTC_SUCCESS) {
      return failure(api, result, call);
    }
  }
  if (is_text && !out.empty() && out.back() == '\0') out.pop_back();
  return out;
}

// "file.cu(3): error: ..." of the log, for the sentence.
std::string first_error(const std::string& log) {
  const std::size_t at = log.find("error");
  if (at == std::string::npos) return log.substr(0, log.find('\n'));
  const std::size_t line = log.rfind('\n', at);
  const std::size_t begin = line == std::string::npos ? 0 : line + 1;
  return log.substr(begin, log.find('\n', at) - begin);
}

}  // namespace

Result<NvrtcOutput> compile(const NvrtcApi& api, const std::string& name, const std::string& source,
                            const std::vector<NvrtcHeader>& headers,
                            const std::vector<std::string>& options, NvrtcTarget target) {
  std::vector<const char*> texts, names, words;
  for (const NvrtcHeader& header : headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  for (const std::string& option : options) words.push_back(option.c_str());

  Program program(api);
  if (const nvrtcResult result =
          api.nvrtcCreateProgram(program.address(), source.c_str(), name.c_str(),
                                 static_cast<int>(headers.size()), texts.data(), names.data());
      result != NVRTC_SUCCESS) {
    return failure(api, result, "nvrtcCreateProgram");
  }
  const nvrtcResult compiled =
      api.nvrtcCompileProgram(program.get(), static_cast<int>(words.size()), words.data());
  SCANJIT_ASSIGN_OR_RETURN(
      std::string log, fetch(api, program, api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog, true,
                             "nvrtcGetProgramLog"));
  if (compiled == NVRTC_ERROR_OUT_OF_MEMORY) return failure(api, compiled, "nvrtcCompileProgram");
  if (compiled != NVRTC_SUCCESS) {
    const char* text = api.nvrtcGetErrorString(compiled);
    const std::string reason =
        log.empty() ? std::string(text != nullptr ? text : "an unknown error") : first_error(log);
    ErrorDetails details;
    details.compile_log = std::move(log);
    return Status(ErrorCode::kCompileFailed, name + " does not compile: " + reason,
                  std::move(details));
  }
  NvrtcOutput output;
  output.log = std::move(log);
  if (target == NvrtcTarget::kPtx) {
    SCANJIT_ASSIGN_OR_RETURN(output.code, fetch(api, program, api.nvrtcGetPTXSize, api.nvrtcGetPTX,
                                                true, "nvrtcGetPTX"));
  } else {
    SCANJIT_ASSIGN_OR_RETURN(output.code, fetch(api, program, api.nvrtcGetCUBINSize,
                                                api.nvrtcGetCUBIN, false, "nvrtcGetCUBIN"));
    if (output.code.empty())
      return internal_error("NVRTC made no machine code of " + name +
                            ": the architecture is virtual");
  }
  return output;
}

Result<NvrtcApi> open_nvrtc(const Environment& environment, os::LibraryLoader& loader,
                            os::FileSystem& files) {
  os::FailedLibraries tried;
  const auto attempt = [&](const std::string& file) -> Result<NvrtcApi> {
    Result<NvrtcApi> api = open_file(file, loader, files);
    if (!api.ok()) tried.add(file, api.status());
    return api;
  };
  if (!environment.scanjit_nvrtc_library.empty()) {
    if (auto api = attempt(environment.scanjit_nvrtc_library); api.ok()) return api;
    return unsupported("no usable NVRTC; looked only at SCANJIT_NVRTC_LIBRARY: " + tried.text());
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    if (auto api = attempt(name); api.ok()) return api;
  }
  const std::vector<std::string> folders = nvrtc_folders(environment, files);
  for (const std::string& folder : folders) {
    for (const std::string& file : nvrtc_files(folder, files)) {
      if (auto api = attempt(file); api.ok()) return api;
    }
  }
  std::string looked;
  for (const std::string& folder : folders) looked += (looked.empty() ? "" : ", ") + folder;
  return unsupported(
      "no usable NVRTC (SCANJIT_NVRTC_LIBRARY can name its file); tried: " + tried.text() +
      "; looked in the folders: " + (looked.empty() ? "none of the usual ones exists" : looked));
}

namespace {
std::atomic<const NvrtcApi*> loaded_table{nullptr};
}  // namespace

Result<const NvrtcApi*> load_nvrtc(const Environment& environment) {
  static std::mutex mutex;
  if (const NvrtcApi* api = loaded_nvrtc()) return api;
  const std::lock_guard lock(mutex);
  if (const NvrtcApi* api = loaded_nvrtc()) return api;
  SCANJIT_ASSIGN_OR_RETURN(NvrtcApi opened, open_nvrtc(environment));
  // Kept for ever: threads may still use it while the process exits.
  const auto* api = new NvrtcApi(std::move(opened));
  loaded_table.store(api, std::memory_order_release);
  return api;
}

const NvrtcApi* loaded_nvrtc() noexcept { return loaded_table.load(std::memory_order_acquire); }

}  // namespace scanjit::cuda
