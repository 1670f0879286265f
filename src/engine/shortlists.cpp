#include "engine/shortlists.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "core/guard.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::engine {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxConfigs = 6;
constexpr int kMaxParameter = 65536;

Status wrong(const std::string& where, const std::string& what) {
  return corrupt("shortlists: " + where + " " + what);
}

// An object with exactly these fields, and perhaps `optional`.
Status check_fields(const Json& object, const std::string& where,
                    const std::set<std::string>& names, const std::string& optional = {}) {
  if (!object.is_object()) return wrong(where, "is no object");
  for (const auto& [name, value] : object.items()) {
    if (names.count(name) == 0 && name != optional)
      return wrong(where, "has an unknown field \"" + name + "\"");
  }
  for (const std::string& name : names) {
    if (!object.contains(name)) return wrong(where, "lacks \"" + name + "\"");
  }
  return {};
}

Result<std::string> text_field(const Json& object, const std::string& where, const char* name) {
  const Json& value = object.find(name).value();
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    return wrong(where + "." + name, "is no text, or empty");
  return value.get<std::string>();
}

Result<int> count_field(const Json& object, const std::string& where, const char* name) {
  const Json& value = object.find(name).value();
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
      value.get<std::int64_t>() > kMaxParameter) {
    return wrong(where + "." + name, "is no integer from 1 to " + std::to_string(kMaxParameter));
  }
  return value.get<int>();
}

Result<Config> config_from(const Json& object, const std::string& where) {
  SCANJIT_TRY(check_fields(object, where, {"bv", "bk", "stages", "warps"}, "segment_chunks"));
  Config config;
  SCANJIT_ASSIGN_OR_RETURN(config.bv, count_field(object, where, "bv"));
  SCANJIT_ASSIGN_OR_RETURN(config.bk, count_field(object, where, "bk"));
  SCANJIT_ASSIGN_OR_RETURN(config.stages, count_field(object, where, "stages"));
  SCANJIT_ASSIGN_OR_RETURN(config.warps, count_field(object, where, "warps"));
  if (object.contains("segment_chunks")) {
    SCANJIT_ASSIGN_OR_RETURN(config.segment_chunks, count_field(object, where, "segment_chunks"));
  }
  return config;
}

Result<Shortlist> list_from(const Json& object, const std::string& where) {
  SCANJIT_TRY(check_fields(object, where,
                           {"kernel", "kernel_revision", "arch", "source_class", "configs"}));
  Shortlist list;
  SCANJIT_ASSIGN_OR_RETURN(list.kernel, text_field(object, where, "kernel"));
  SCANJIT_ASSIGN_OR_RETURN(list.kernel_revision, count_field(object, where, "kernel_revision"));
  SCANJIT_ASSIGN_OR_RETURN(list.arch, text_field(object, where, "arch"));
  SCANJIT_ASSIGN_OR_RETURN(list.source_class, text_field(object, where, "source_class"));
  const Json& configs = object.find("configs").value();
  if (!configs.is_array() || configs.empty() || configs.size() > kMaxConfigs) {
    return wrong(where + ".configs",
                 "is no list of 1 to " + std::to_string(kMaxConfigs) + " configs");
  }
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const std::string place = where + ".configs[" + std::to_string(i) + "]";
    SCANJIT_ASSIGN_OR_RETURN(const Config config, config_from(configs[i], place));
    for (const Config& other : list.configs) {
      if (other == config) return wrong(place, "is there twice");
    }
    list.configs.push_back(config);
  }
  return list;
}

}  // namespace

Result<Shortlists> Shortlists::from_json(std::string_view text) {
  return guard([&]() -> Result<Shortlists> {
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded()) return corrupt("shortlists: the text is no JSON");
    SCANJIT_TRY(check_fields(json, "the file", {"schema", "lists"}));
    if (json.find("schema").value() != kShortlistsSchema)
      return wrong("schema", std::string("is not \"") + kShortlistsSchema + "\"");
    const Json& lists = json.find("lists").value();
    if (!lists.is_array()) return wrong("lists", "is no list");
    std::vector<Shortlist> made;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      SCANJIT_ASSIGN_OR_RETURN(Shortlist list,
                               list_from(lists[i], "lists[" + std::to_string(i) + "]"));
      for (const Shortlist& other : made) {
        if (other.kernel == list.kernel && other.kernel_revision == list.kernel_revision &&
            other.arch == list.arch && other.source_class == list.source_class) {
          return wrong(
              "lists[" + std::to_string(i) + "]",
              "is a second list of " + list.kernel + ", " + list.arch + ", " + list.source_class);
        }
      }
      made.push_back(std::move(list));
    }
    return Shortlists(std::move(made));
  });
}

std::string Shortlists::to_json() const {
  using Ordered = nlohmann::ordered_json;
  std::string text = std::string("{\n  \"schema\": \"") + kShortlistsSchema + "\",\n  \"lists\": [";
  bool first = true;
  for (const Shortlist& list : lists_) {
    Ordered object;
    object["kernel"] = list.kernel;
    object["kernel_revision"] = list.kernel_revision;
    object["arch"] = list.arch;
    object["source_class"] = list.source_class;
    object["configs"] = Ordered::array();
    for (const Config& config : list.configs)
      object["configs"].push_back(tuning::config_json(config));
    text += (first ? "\n    " : ",\n    ") + object.dump();
    first = false;
  }
  return text + (first ? "]\n}\n" : "\n  ]\n}\n");
}

const Shortlist* Shortlists::find(std::string_view kernel, int kernel_revision,
                                  std::string_view arch,
                                  std::string_view source_class) const noexcept {
  const Shortlist* general = nullptr;
  for (const Shortlist& list : lists_) {
    if (list.kernel != kernel || list.kernel_revision != kernel_revision || list.arch != arch)
      continue;
    if (list.source_class == source_class) return &list;
    if (list.source_class == "any") general = &list;
  }
  return general;
}

}  // namespace scanjit::engine
