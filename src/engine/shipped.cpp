// What is compiled into the library beside its code.
#include "core/embedded_file.hpp"
#include "engine/internals.hpp"

namespace scanjit {
extern const EmbeddedFile embedded_tuned[];
extern const std::size_t embedded_tuned_count;
extern const EmbeddedFile embedded_shortlists[];
}  // namespace scanjit

namespace scanjit::engine {
namespace {

std::string_view text_of(const EmbeddedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes), file.size};
}

}  // namespace

std::vector<tuning::ShippedText> shipped_configs() {
  std::vector<tuning::ShippedText> texts;
  for (std::size_t i = 0; i < embedded_tuned_count; ++i)
    texts.push_back({embedded_tuned[i].name, text_of(embedded_tuned[i])});
  return texts;
}

std::string shipped_shortlists() { return std::string(text_of(embedded_shortlists[0])); }

}  // namespace scanjit::engine
