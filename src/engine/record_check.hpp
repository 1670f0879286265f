#pragma once
/// \file
/// Tuned entries from outside: files that somebody hands in are held against the op's own rules
/// before they are stored, packed or merged. (What an engine reads is checked again when it is
/// used.)

#include "scanjit/result.hpp"
#include "tuning/record.hpp"

namespace scanjit::engine {

/// Ok if the pick, the default and every alternate of the record are legal for its key on that GPU
/// model. Also ok if this build cannot tell: another op, kernel revision or config space, which it
/// never serves either. Errors: kInvalidArgument; the sentence names key and config.
[[nodiscard]] Status check_record(const tuning::Record& record, const tuning::GpuFacts& gpu);
/// The first record of the file that is not ok.
[[nodiscard]] Status check_records(const tuning::TunedFile& file);

}  // namespace scanjit::engine
