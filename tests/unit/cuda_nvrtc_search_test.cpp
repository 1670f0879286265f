#include "cuda/nvrtc_search.hpp"

#include <algorithm>

#include "cuda/nvrtc.hpp"
#include "os/memory_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::cuda;

TEST_CASE("NVRTC's folders: toolkit first, newest first, then the Python packages", "[cuda]") {
  os::MemoryFileSystem files;
  for (const char* library :
       {"/opt/toolkit/lib64/libnvrtc.so.12", "/usr/local/cuda-12.4/lib64/libnvrtc.so.12",
        "/usr/local/cuda-13.0/lib64/libnvrtc.so.13", "/usr/local/cuda-9.2/lib64/libnvrtc.so.9.2",
        "/venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "/home/me/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        "/usr/local/lib/python3.10/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "/usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "/conda/lib/libnvrtc.so.12"}) {
    files.put(library, "x");
  }
  Environment environment;
  environment.cuda_home = "/opt/toolkit";
  environment.virtual_env = "/venv";
  environment.conda_prefix = "/conda";
  environment.home = "/home/me";
  CHECK(nvrtc_folders(environment, files) ==
        std::vector<std::string>{
            "/opt/toolkit/lib64", "/usr/local/cuda-13.0/lib64", "/usr/local/cuda-12.4/lib64",
            "/usr/local/cuda-9.2/lib64", "/venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib",
            "/conda/lib", "/home/me/.local/lib/python3.12/site-packages/nvidia/cu13/lib",
            "/usr/local/lib/python3.10/dist-packages/nvidia/cuda_nvrtc/lib",
            "/usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib"});
  CHECK(nvrtc_folders({}, files).size() == 5);
}

TEST_CASE("of several NVRTCs in a folder the newest comes first and too old ones not at all",
          "[cuda]") {
  os::MemoryFileSystem files;
  for (const char* name :
       {"libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.11.2", "libnvrtc.so.9",
        "libnvrtc.so.12.4.127", "libnvrtc.so", "libnvrtc.so.12.alt", "libnvrtc-builtins.so.13.0"}) {
    files.put(std::string("/lib/") + name, "x");
  }
  CHECK(nvrtc_files("/lib", files) ==
        std::vector<std::string>{"/lib/libnvrtc.so.13", "/lib/libnvrtc.so.12", "/lib/libnvrtc.so"});
  CHECK(nvrtc_files("/none", files).empty());
  CHECK(nvrtc_builtins_file("/lib", 13, 0, files) == "/lib/libnvrtc-builtins.so.13.0");
  CHECK(nvrtc_builtins_file("/lib", 12, 4, files).empty());
}

namespace {

class NoLibraries final : public os::LibraryLoader {
 public:
  Result<std::shared_ptr<os::DynamicLibrary>> open(const std::string& name) override {
    return not_found("cannot open " + name, name);
  }
};

}  // namespace

TEST_CASE("without NVRTC the sentence lists every library tried and every folder looked in",
          "[cuda]") {
  os::MemoryFileSystem files;
  files.put("/usr/local/cuda-12.4/lib64/libnvrtc.so.12", "x");
  files.put("/usr/local/cuda/lib64/readme", "x");
  NoLibraries loader;
  const auto api = open_nvrtc({}, loader, files);
  REQUIRE_FALSE(api.ok());
  CHECK(api.status().code() == ErrorCode::kUnsupported);
  for (const char* place : {"libnvrtc.so.13", "/usr/local/cuda-12.4/lib64/libnvrtc.so.12",
                            "/usr/local/cuda/lib64", "SCANJIT_NVRTC_LIBRARY"}) {
    CHECK(api.status().message().find(place) != std::string::npos);
  }
  Environment environment;
  environment.scanjit_nvrtc_library = "/opt/mine.so";
  const auto only = open_nvrtc(environment, loader, files);
  CHECK(only.status().message().find("/opt/mine.so") != std::string::npos);
  CHECK(only.status().message().find("/usr/local/cuda") == std::string::npos);
}
