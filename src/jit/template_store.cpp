#include "jit/template_store.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/embedded_file.hpp"
#include "core/hash.hpp"

namespace scanjit {
extern const EmbeddedFile kernel_template_files[];
extern const std::size_t kernel_template_files_count;
}  // namespace scanjit

namespace scanjit::jit {
namespace {

constexpr std::int64_t kMostFileBytes = 1 << 22;
constexpr int kMostDepth = 8;

bool is_template_name(std::string_view name) {
  return name.ends_with(".cu") || name.ends_with(".cuh") || name.ends_with(".h");
}

Status read_folder(const std::string& root, const std::string& below, int depth,
                   os::FileSystem& files, std::map<std::string, std::string>& out) {
  const std::string folder = below.empty() ? root : os::join_path(root, below);
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list_directory(folder));
  for (const std::string& name : names) {
    const std::string relative = below.empty() ? name : below + "/" + name;
    SCANJIT_ASSIGN_OR_RETURN(const os::FileInfo info, files.info(os::join_path(root, relative)));
    if (info.type == os::FileType::kDirectory && depth < kMostDepth) {
      SCANJIT_TRY(read_folder(root, relative, depth + 1, files, out));
    } else if (info.type == os::FileType::kRegular && is_template_name(name)) {
      SCANJIT_ASSIGN_OR_RETURN(out[relative],
                               files.read_file(os::join_path(root, relative), kMostFileBytes));
    }
  }
  return {};
}

void skip_spaces(std::string_view& line) {
  const std::size_t at = line.find_first_not_of(" \t");
  line.remove_prefix(at == std::string_view::npos ? line.size() : at);
}

bool skip_word(std::string_view& line, std::string_view word) {
  if (!line.starts_with(word)) return false;
  line.remove_prefix(word.size());
  skip_spaces(line);
  return true;
}

// Names that the #include lines of `text` ask for.
std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    skip_spaces(line);
    if (!skip_word(line, "#") || !skip_word(line, "include") || line.empty()) continue;
    const char close = line.front() == '<' ? '>' : '"';
    line.remove_prefix(1);
    names.emplace_back(line.substr(0, line.find(close)));
  }
  return names;
}

}  // namespace

Result<TemplateStore> TemplateStore::open(const Environment& environment, os::FileSystem& files) {
  if (!environment.scanjit_template_dir.empty()) {
    Result<TemplateStore> store = from_directory(environment.scanjit_template_dir, files);
    if (!store.ok()) return store.status().with_context("SCANJIT_TEMPLATE_DIR");
    return store;
  }
  TemplateStore store;
  for (std::size_t i = 0; i < kernel_template_files_count; ++i) {
    const EmbeddedFile& file = kernel_template_files[i];
    store.files_[file.name] = std::string(reinterpret_cast<const char*>(file.bytes), file.size);
  }
  return store;
}

Result<TemplateStore> TemplateStore::from_directory(const std::string& dir, os::FileSystem& files) {
  TemplateStore store;
  SCANJIT_TRY(read_folder(dir, "", 0, files, store.files_));
  if (store.files_.empty()) return not_found("no .cu, .cuh or .h file below " + dir, dir);
  return store;
}

TemplateStore TemplateStore::from_files(std::vector<TemplateFile> files) {
  TemplateStore store;
  for (TemplateFile& file : files) store.files_[std::move(file.name)] = std::move(file.text);
  return store;
}

Result<std::vector<TemplateFile>> TemplateStore::closure(const std::string& name) const {
  const auto top = files_.find(name);
  if (top == files_.end()) return not_found("no kernel template named " + name, name);
  std::set<std::string> seen = {name};
  std::vector<std::string> open = {name};
  while (!open.empty()) {
    const std::string current = std::move(open.back());
    open.pop_back();
    for (const std::string& included : includes_of(files_.at(current))) {
      if (files_.find(included) == files_.end()) {
        return not_found("template " + current + " includes \"" + included +
                             "\", which is no file of the templates",
                         included);
      }
      if (seen.insert(included).second) open.push_back(included);
    }
  }
  seen.erase(name);
  std::vector<TemplateFile> files = {{name, top->second}};
  for (const std::string& other : seen) files.push_back({other, files_.at(other)});
  return files;
}

Result<std::string> TemplateStore::digest(const std::string& name) const {
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<TemplateFile> files, closure(name));
  Sha256 hash;
  for (const TemplateFile& file : files) {
    // Lengths, so that no other division into names and texts gives the same bytes.
    hash.update(std::to_string(file.name.size()) + ":" + file.name +
                std::to_string(file.text.size()) + ":");
    hash.update(file.text);
  }
  return hash.hex();
}

std::vector<std::string> TemplateStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, text] : files_) names.push_back(name);
  return names;
}

}  // namespace scanjit::jit
