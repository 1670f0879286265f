#include "tune_worker.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <istream>
#include <ostream>

#include "engine/tune_key.hpp"
#include "gpu.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"

namespace scanjit::cli {
namespace {

constexpr int kBusyTries = 3;

Json point_json(const tuning::MeasuredPoint& point) {
  return {{"sequences", point.sequences}, {"tokens", point.tokens}};
}

Status bad_line(const std::string& line) {
  return internal_error("the tuning worker and its parent do not understand each other: " +
                        line.substr(0, 200));
}

// Checked access: both sides are of one build, but a line may be cut by a dying process.
const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

constexpr int kMostRounds =
    21;  // what two dozen rounds cannot tell apart differs by no more than the noise

Result<tuning::MeasuredPoint> point_from(const Json& json, const std::string& line) {
  const Json *sequences = member(json, "sequences"), *tokens = member(json, "tokens");
  if (sequences == nullptr || tokens == nullptr || !sequences->is_number_integer() ||
      !tokens->is_number_integer())
    return bad_line(line);
  return tuning::MeasuredPoint{sequences->get<std::int64_t>(), tokens->get<std::int64_t>()};
}

// Steps that run a config end in it: "timing bv=64 ...", "comparing bv=64 ...".
std::optional<Config> config_of_step(const std::string& step,
                                     const std::vector<Config>& candidates) {
  for (const Config& config : candidates) {
    if (step.ends_with(" " + to_string(config))) return config;
  }
  return std::nullopt;
}

Result<TuneAnswer> run_request(Gpu& gpu, const TuneRequest& request,
                               const std::function<void(const std::string&)>& step) {
  std::vector<std::shared_ptr<const ops::OpProblem>> problems;
  for (const tuning::MeasuredPoint& point : request.points) {
    SCANJIT_ASSIGN_OR_RETURN(auto problem, ops::make_problem(request.key, point));
    problems.push_back(std::move(problem));
  }
  engine::TuneKeyOptions options;
  SCANJIT_ASSIGN_OR_RETURN(options.timer.scratch_limit, usable_memory(gpu));
  options.timer.unload = true;
  options.select.max_rounds = kMostRounds;
  options.select.budget_ms = request.budget_ms;
  options.progress = step;
  TuneAnswer answer;
  for (int attempt = 0; attempt < kBusyTries && !answer.record; ++attempt) {
    if (attempt != 0) step("again: something else is using the GPU");
    SCANJIT_ASSIGN_OR_RETURN(engine::TunedKey tuned, engine::tune_key(gpu.internals, problems,
                                                                      request.candidates, options));
    answer.record = std::move(tuned.record);
    answer.noise = tuned.noise;
    answer.points.clear();
    for (const tuning::PointSelection& point : tuned.points) {
      PointTimes times;
      times.point = point.point;
      for (const tuning::Measured& measured : point.selection.measured)
        times.us.emplace_back(measured.config, measured.us.median);
      answer.points.push_back(std::move(times));
    }
  }
  return answer;
}

}  // namespace

std::string to_line(const TuneRequest& request) {
  Json json, points = Json::array(), candidates = Json::array();
  for (const tuning::MeasuredPoint& point : request.points) points.push_back(point_json(point));
  for (const Config& config : request.candidates) candidates.push_back(config_argument(config));
  json["key"] = Json::parse(tuning::to_json(request.key), nullptr, false);
  json["points"] = std::move(points);
  json["candidates"] = std::move(candidates);
  json["budget_ms"] = request.budget_ms;
  return dump(json);
}

Result<TuneRequest> request_from_line(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  const Json *key = member(json, "key"), *points = member(json, "points"),
             *candidates = member(json, "candidates"), *budget = member(json, "budget_ms");
  if (key == nullptr || points == nullptr || candidates == nullptr || budget == nullptr ||
      !points->is_array() || !candidates->is_array() || !budget->is_number()) {
    return bad_line(line);
  }
  TuneRequest request;
  SCANJIT_ASSIGN_OR_RETURN(request.key, tuning::shape_key_from_json(dump(*key)));
  for (const Json& point : *points) {
    SCANJIT_ASSIGN_OR_RETURN(const tuning::MeasuredPoint read, point_from(point, line));
    request.points.push_back(read);
  }
  for (const Json& candidate : *candidates) {
    if (!candidate.is_string()) return bad_line(line);
    SCANJIT_ASSIGN_OR_RETURN(const Config config, parse_config(candidate.get<std::string>()));
    request.candidates.push_back(config);
  }
  request.budget_ms = budget->get<double>();
  return request;
}

std::string to_line(const TuneAnswer& answer) {
  Json points = Json::array();
  for (const PointTimes& times : answer.points) {
    Json json = point_json(times.point), us = Json::array();
    for (const auto& [config, median] : times.us) us.push_back({config_argument(config), median});
    json["us"] = std::move(us);
    points.push_back(std::move(json));
  }
  Json done;
  done["record"] =
      answer.record ? Json::parse(tuning::to_json(*answer.record), nullptr, false) : Json();
  done["noise"] = answer.noise;
  done["points"] = std::move(points);
  return dump({{"done", std::move(done)}});
}

Result<TuneAnswer> answer_from_line(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (const Json* error = member(json, "error")) {
    const Json *code = member(*error, "code"), *message = member(*error, "message");
    if (code == nullptr || message == nullptr || !code->is_number_integer() ||
        !message->is_string())
      return bad_line(line);
    return Status(static_cast<ErrorCode>(code->get<int>()), message->get<std::string>());
  }
  const Json* done = member(json, "done");
  const Json *record = done == nullptr ? nullptr : member(*done, "record"),
             *noise = done == nullptr ? nullptr : member(*done, "noise"),
             *points = done == nullptr ? nullptr : member(*done, "points");
  if (record == nullptr || noise == nullptr || points == nullptr || !noise->is_number() ||
      !points->is_array())
    return bad_line(line);
  TuneAnswer answer;
  if (!record->is_null()) {
    SCANJIT_ASSIGN_OR_RETURN(answer.record, tuning::record_from_json(dump(*record)));
  }
  answer.noise = noise->get<double>();
  for (const Json& point : *points) {
    PointTimes times;
    SCANJIT_ASSIGN_OR_RETURN(times.point, point_from(point, line));
    const Json* us = member(point, "us");
    if (us == nullptr || !us->is_array()) return bad_line(line);
    for (const Json& pair : *us) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number())
        return bad_line(line);
      SCANJIT_ASSIGN_OR_RETURN(const Config config, parse_config(pair[0].get<std::string>()));
      times.us.emplace_back(config, pair[1].get<double>());
    }
    answer.points.push_back(std::move(times));
  }
  return answer;
}

int serve_tuning(Session& session, const EngineOptions& options) {
  // A candidate that hangs does not see its input end: without this it would keep the GPU for ever.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Result<Gpu> gpu = open_gpu(session, options);
  const auto say_error = [&](const Status& status) {
    session.out << dump({{"error",
                          {{"code", static_cast<int>(status.code())},
                           {"message", status.message()}}}})
                << std::endl;
  };
  if (!gpu.ok()) {
    say_error(gpu.status());
    return kExitEnvironment;
  }
  std::string line;
  while (std::getline(session.in, line)) {
    const Result<TuneRequest> request = request_from_line(line);
    if (!request.ok()) {
      say_error(request.status());
      continue;
    }
    const Result<TuneAnswer> answer = run_request(*gpu, *request, [&](const std::string& step) {
      session.out << dump({{"step", step}}) << std::endl;
    });
    if (answer.ok()) {
      session.out << to_line(*answer) << std::endl;
      continue;
    }
    // A device fault stays with the process: the parent has to see a death, with the step before
    // it.
    if (answer.status().code() == ErrorCode::kDeviceLost) return kExitFailed;
    say_error(answer.status());
  }
  return kExitOk;
}

Status TuneWorker::start() {
  if (process_) return {};
  os::ProcessOptions start;
  start.argv = {program_, "tune", op_, "--worker", "--devices", std::to_string(options_.device)};
  if (!options_.cache_dir.empty())
    start.argv.insert(start.argv.end(), {"--cache-dir", options_.cache_dir});
  for (const std::string& pack : options_.pack_dirs)
    start.argv.insert(start.argv.end(), {"--pack", pack});
  SCANJIT_ASSIGN_OR_RETURN(os::Process process, os::Process::spawn(start));
  process_ = std::make_unique<os::Process>(std::move(process));
  return {};
}

Result<TuneAnswer> TuneWorker::attempt(const TuneRequest& request,
                                       const std::function<void(const std::string&)>& step,
                                       std::optional<Config>* in_hand, bool* died) {
  SCANJIT_TRY(start());
  *died = false;
  const auto death = [&](const Status& status) -> Status {
    *died = true;
    process_.reset();  // kills and reaps
    return status;
  };
  if (const Status status = process_->write(to_line(request) + "\n", silence_ms_); !status.ok())
    return death(status);
  while (true) {
    const Result<std::optional<std::string>> line = process_->read_line(silence_ms_);
    if (!line.ok()) {
      if (line.status().code() != ErrorCode::kTimeout) return death(line.status());
      return death(Status(ErrorCode::kTimeout, "the worker said nothing for " +
                                                   std::to_string(silence_ms_ / 1000) + " s"));
    }
    if (!*line) {
      const Result<std::optional<os::ExitStatus>> exit = process_->wait(1000);
      const std::string how = exit.ok() && *exit ? os::to_string(**exit) : "unknown cause";
      return death(Status(ErrorCode::kDeviceLost, "the worker died: " + how));
    }
    const Json json = Json::parse(**line, nullptr, false);
    if (const Json* said = member(json, "step"); said != nullptr && said->is_string()) {
      *in_hand = config_of_step(said->get<std::string>(), request.candidates);
      step(said->get<std::string>());
      continue;
    }
    return answer_from_line(**line);
  }
}

Result<TuneAnswer> TuneWorker::tune(TuneRequest request,
                                    const std::function<void(const std::string&)>& step) {
  std::vector<tuning::Rejected> rejected;
  while (true) {
    std::optional<Config> in_hand;
    bool died = false;
    Result<TuneAnswer> answer = attempt(request, step, &in_hand, &died);
    if (answer.ok()) {
      if (answer->record)
        answer->record->rejected.insert(answer->record->rejected.end(), rejected.begin(),
                                        rejected.end());
      return answer;
    }
    // Only what was running when the worker died is blamed; the default cannot be left out.
    if (!died || !in_hand || *in_hand == request.candidates.front()) return answer;
    const bool hung = answer.status().code() == ErrorCode::kTimeout;
    rejected.push_back({*in_hand,
                        hung ? tuning::RejectReason::kTimeout : tuning::RejectReason::kDeviceFault,
                        answer.status().message()});
    std::erase(request.candidates, *in_hand);
    step("restarting without " + to_string(*in_hand));
  }
}

}  // namespace scanjit::cli
