#pragma once
/// \file
/// The few configs that a first use may time: per kernel, revision, architecture and source class,
/// in `configs/shortlists.json` (`configs/schema/shortlists.schema.json`). Only configs that ran in
/// a worker process for that revision and architecture are listed.

#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::engine {

inline constexpr const char* kShortlistsSchema = "scanjit-shortlists/1";

struct Shortlist {
  std::string kernel;
  int kernel_revision = 0;
  std::string arch;          ///< "sm_90a"
  std::string source_class;  ///< OpProblem::source_class(), or "any": where no other list applies
  std::vector<Config> configs;  ///< at most 6

  friend bool operator==(const Shortlist&, const Shortlist&) = default;
};

/// Immutable.
class Shortlists {
 public:
  Shortlists() = default;
  explicit Shortlists(std::vector<Shortlist> lists) : lists_(std::move(lists)) {}

  /// Strict reading. Errors: kCorrupt, the sentence names list and field.
  [[nodiscard]] static Result<Shortlists> from_json(std::string_view text);
  [[nodiscard]] std::string to_json() const;

  /// Null if there is none: nothing may be timed.
  [[nodiscard]] const Shortlist* find(std::string_view kernel, int kernel_revision,
                                      std::string_view arch,
                                      std::string_view source_class) const noexcept;
  [[nodiscard]] const std::vector<Shortlist>& lists() const noexcept { return lists_; }

 private:
  std::vector<Shortlist> lists_;
};

}  // namespace scanjit::engine
