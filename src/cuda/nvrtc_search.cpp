#include "cuda/nvrtc_search.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace scanjit::cuda {
namespace {

// Numbers of a version ("13.0" -> 13, 0) or nothing if the text is anything else.
std::optional<std::vector<int>> parse_version(std::string_view text) {
  std::vector<int> numbers;
  while (true) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return numbers;
    if (text.front() != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

// Names in `folder` that are `prefix` and a version, newest first.
std::vector<std::string> versioned_names(const std::string& folder, std::string_view prefix,
                                         os::FileSystem& files) {
  std::vector<std::pair<std::vector<int>, std::string>> found;
  const auto names = files.list_directory(folder);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    if (!std::string_view(name).starts_with(prefix)) continue;
    if (auto version = parse_version(std::string_view(name).substr(prefix.size()))) {
      found.emplace_back(std::move(*version), name);
    }
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> sorted;
  sorted.reserve(found.size());
  for (auto& [version, name] : found) sorted.push_back(std::move(name));
  return sorted;
}

class FolderList {
 public:
  explicit FolderList(os::FileSystem& files) : files_(files) {}

  void add(const std::string& folder) {
    const auto info = files_.info(folder);
    if (!info.ok() || info->type != os::FileType::kDirectory) return;
    if (std::find(folders_.begin(), folders_.end(), folder) == folders_.end())
      folders_.push_back(folder);
  }

  void add_toolkit(const std::string& root) {
    if (root.empty()) return;
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
      add(os::join_path(root, folder));
    }
  }

  // <root>/nvidia/*/lib: where the Python packages keep the toolkit's libraries.
  void add_packages(const std::string& root) {
    const std::string nvidia = os::join_path(root, "nvidia");
    const auto names = files_.list_directory(nvidia);
    if (!names.ok()) return;
    for (const std::string& name : *names) add(os::join_path(os::join_path(nvidia, name), "lib"));
  }

  // Packages of every python3* below <prefix>/lib.
  void add_python(const std::string& prefix) {
    if (prefix.empty()) return;
    const std::string lib = os::join_path(prefix, "lib");
    for (const std::string& python : versioned_names(lib, "python", files_)) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        add_packages(os::join_path(os::join_path(lib, python), packages));
      }
    }
  }

  std::vector<std::string> take() { return std::move(folders_); }

 private:
  os::FileSystem& files_;
  std::vector<std::string> folders_;
};

}  // namespace

std::vector<std::string> nvrtc_folders(const Environment& environment, os::FileSystem& files) {
  FolderList list(files);
  list.add_toolkit(environment.cuda_home);
  list.add_toolkit(environment.cuda_path);
  list.add_toolkit("/usr/local/cuda");
  for (const std::string& name : versioned_names("/usr/local", "cuda-", files))
    list.add_toolkit("/usr/local/" + name);
  list.add_toolkit("/opt/cuda");
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"})
    list.add(folder);

  list.add_python(environment.virtual_env);
  if (!environment.conda_prefix.empty()) list.add(os::join_path(environment.conda_prefix, "lib"));
  list.add_python(environment.conda_prefix);
  if (!environment.home.empty()) list.add_python(os::join_path(environment.home, ".local"));
  list.add_python("/usr/local");
  list.add_packages("/usr/lib/python3/dist-packages");
  list.add_python("/usr");
  list.add_python("/opt/conda");
  return list.take();
}

std::vector<std::string> nvrtc_files(const std::string& folder, os::FileSystem& files) {
  constexpr int kOldestMajor = 12;
  std::vector<std::string> paths;
  for (const std::string& name : versioned_names(folder, "libnvrtc.so.", files)) {
    const auto version =
        parse_version(std::string_view(name).substr(std::string_view("libnvrtc.so.").size()));
    // One number: the others are the same files under the full version of the release.
    if (version->size() == 1 && version->front() >= kOldestMajor)
      paths.push_back(os::join_path(folder, name));
  }
  const std::string plain = os::join_path(folder, "libnvrtc.so");
  if (files.exists(plain)) paths.push_back(plain);
  return paths;
}

std::string nvrtc_builtins_file(const std::string& folder, int major, int minor,
                                os::FileSystem& files) {
  const std::string exact = os::join_path(
      folder, "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor));
  return files.exists(exact) ? exact : std::string();
}

}  // namespace scanjit::cuda
