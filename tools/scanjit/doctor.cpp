// scanjit doctor: what this machine has, what it lacks, and what to do about it.

#include <unistd.h>

#include <memory>
#include <ostream>

#include "commands.hpp"
#include "cuda/device_facts.hpp"
#include "cuda/driver.hpp"
#include "cuda/nvrtc.hpp"
#include "engine/internals.hpp"
#include "flags.hpp"
#include "os/cache_directory.hpp"
#include "os/posix_file_system.hpp"
#include "terminal.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::cli {
namespace {

enum class Grade { kOk, kWarning, kMissing };

struct Finding {
  const char* subject;
  Grade grade = Grade::kOk;
  std::string text;
  std::string fix;  ///< what to do, "" if nothing
};

const char* word(Grade grade) {
  switch (grade) {
    case Grade::kOk: return "ok";
    case Grade::kWarning: return "warning";
    case Grade::kMissing: return "missing";
  }
  return "";
}

constexpr std::size_t kWidth = 100, kTextColumn = 22;

// Compute capability 8.0 is where the templates begin.
constexpr int kOldestMajor = 8;

struct Examination {
  std::vector<Finding> findings;
  std::vector<cuda::DeviceFacts> devices;
  Json facts;
  bool usable_gpu = false;
};

std::string known_arch(const std::vector<cuda::DeviceFacts>& devices) {
  return devices.empty() ? "" : devices.front().arch;
}

void look_at_driver(const Environment& environment, Examination* result) {
  const Result<const cuda::DriverApi*> driver = cuda::load_driver(environment);
  if (!driver.ok()) {
    result->findings.push_back({"driver", Grade::kMissing, driver.status().message(),
                                "install NVIDIA's driver (525 or newer), run the container with "
                                "--gpus all, or name the library: "
                                "SCANJIT_CUDA_LIBRARY=/path/to/libcuda.so.1. Without a GPU "
                                "'scanjit prewarm' and 'scanjit inspect' work"});
    return;
  }
  const Result<int> count = cuda::device_count(**driver);
  if (!count.ok() || *count == 0) {
    result->findings.push_back(
        {"GPU", Grade::kMissing,
         count.ok() ? "the driver shows no device to this process" : count.status().message(),
         "check CUDA_VISIBLE_DEVICES and the container's devices"});
    return;
  }
  for (int i = 0; i < *count; ++i) {
    const Result<cuda::CUdevice> device = cuda::device_of_ordinal(**driver, i);
    Result<cuda::DeviceFacts> facts = device.ok() ? cuda::device_facts(**driver, *device, nullptr)
                                                  : Result<cuda::DeviceFacts>(device.status());
    if (!facts.ok()) {
      result->findings.push_back({"GPU", Grade::kWarning,
                                  "device " + std::to_string(i) + ": " + facts.status().message(),
                                  ""});
      continue;
    }
    if (i == 0) {
      result->findings.push_back(
          {"driver", Grade::kOk, facts->driver + ", offers CUDA " + facts->cuda_version, ""});
    }
    const bool usable = facts->cc_major >= kOldestMajor;
    std::string text = "device " + std::to_string(i) + ": " + facts->name + ", " + facts->arch +
                       ", " + std::to_string(facts->sm_count) + " multiprocessors, " +
                       byte_text(facts->total_bytes) + ", L2 " + byte_text(facts->l2_bytes) + ", " +
                       byte_text(facts->smem_optin_bytes) + " of shared memory a block";
    result->findings.push_back({"GPU", usable ? Grade::kOk : Grade::kMissing, std::move(text),
                                usable ? "" : "the kernels need compute capability 8.0 or newer"});
    result->usable_gpu = result->usable_gpu || usable;
    result->devices.push_back(std::move(*facts));
  }
}

void look_at_nvrtc(const Environment& environment, Examination* result) {
  const Result<const cuda::NvrtcApi*> nvrtc = cuda::load_nvrtc(environment);
  if (!nvrtc.ok()) {
    result->findings.push_back({"NVRTC", Grade::kMissing, nvrtc.status().message(),
                                "install it (Debian package cuda-nvrtc-13-0, Python package "
                                "nvidia-cuda-nvrtc, or a CUDA toolkit), or name it: "
                                "SCANJIT_NVRTC_LIBRARY=/path/to/libnvrtc.so. With a pack from "
                                "'scanjit prewarm' none is needed"});
    return;
  }
  const cuda::NvrtcApi& api = **nvrtc;
  std::string archs;
  for (const int arch : api.archs) archs += (archs.empty() ? "" : " ") + std::to_string(arch);
  result->facts["nvrtc"] = {{"version", api.version},
                            {"library", api.library},
                            {"builtins", api.builtins},
                            {"archs", api.archs}};
  Finding finding{"NVRTC", Grade::kOk,
                  api.version + " from " + api.library + ", compiles for " + archs, ""};
  if (api.builtins.empty()) {
    finding.grade = Grade::kWarning;
    finding.text += "; no libnvrtc-builtins lies beside it";
    finding.fix = "keep libnvrtc-builtins in the folder of libnvrtc, or on the loader's path";
  }
  for (const cuda::DeviceFacts& device : result->devices) {
    const int wanted = device.cc_major * 10 + device.cc_minor;
    bool known = false;
    for (const int arch : api.archs) known = known || arch == wanted;
    if (known) continue;
    finding.grade = Grade::kMissing;
    finding.text += "; it does not know " + device.arch;
    finding.fix = "install a newer NVRTC";
    break;
  }
  result->findings.push_back(std::move(finding));
}

void look_at_cache(const std::string& requested, const Environment& environment,
                   Examination* result) {
  os::FileSystem& files = os::posix_file_system();
  const os::CacheDirectory cache = os::choose_cache_directory(requested, environment);
  result->facts["cache"] = {{"path", cache.path}, {"reason", cache.reason}};
  if (cache.memory_only()) {
    result->findings.push_back(
        {"cache", Grade::kWarning, "none: " + cache.reason,
         "set SCANJIT_CACHE_DIR to an absolute path, or every process tunes and compiles again"});
    return;
  }
  // Made here as the engine would make it; a probe file shows whether it can be written to.
  Status status = files.make_directories(cache.path);
  if (status.ok()) status = files.check_trusted_directory(cache.path);
  if (status.ok()) {
    const std::string probe = os::join_path(cache.path, ".doctor-" + std::to_string(getpid()));
    status = files.publish(probe, "ok\n");
    if (status.ok()) status = files.remove_file(probe);
  }
  result->facts["cache"]["writable"] = status.ok();
  if (!status.ok()) {
    result->findings.push_back(
        {"cache", Grade::kWarning, status.message(),
         "give this user a directory of its own with mode 0700 and set SCANJIT_CACHE_DIR to it"});
    return;
  }
  std::string text = cache.path + " (" + cache.reason + "), writable, mine alone";
  if (const auto items = tuning::list_store(files, cache.path); items.ok()) {
    std::int64_t damaged = 0;
    for (const tuning::StoreItem& item : *items) damaged += item.status.ok() ? 0 : 1;
    text += ", " + std::to_string(items->size()) + " tuned files";
    result->facts["cache"]["tuned_files"] = items->size();
    if (damaged != 0) {
      result->findings.push_back(
          {"cache", Grade::kWarning, text + ", " + std::to_string(damaged) + " of them damaged",
           "'scanjit cache verify' names them; 'scanjit cache gc' removes what was set aside"});
      return;
    }
  }
  result->findings.push_back({"cache", Grade::kOk, std::move(text), ""});
}

void look_at_tuned_files(Examination* result) {
  std::string all;
  Json shipped = Json::array();
  const std::vector<tuning::ShippedText> texts = engine::shipped_configs();
  for (const tuning::ShippedText& text : texts) {
    const Result<tuning::TunedFile> file =
        tuning::tuned_file_from_json(text.text, tuning::Checksum::kWithout);
    if (!file.ok()) {
      result->findings.push_back({"tuned files", Grade::kWarning,
                                  std::string(text.name) + ": " + file.status().message(), ""});
      continue;
    }
    bool applies = false;
    for (const cuda::DeviceFacts& device : result->devices) {
      if (!engine::gpu_facts(device).same_model(file->gpu)) continue;
      applies = true;
      result->findings.push_back({"tuned files", Grade::kOk,
                                  std::string(text.name) + " is for this " + device.name + ": " +
                                      std::to_string(file->entries.size()) + " keys",
                                  ""});
      break;
    }
    shipped.push_back(
        {{"name", text.name}, {"entries", file->entries.size()}, {"applies", applies}});
    all += (all.empty() ? "" : ", ") + std::string(text.name);
    if (applies) all.clear();
  }
  bool any = false;
  for (const Json& file : shipped) any = any || file["applies"].get<bool>();
  result->facts["shipped"] = std::move(shipped);
  if (any) return;
  std::string text = texts.empty() ? "none is shipped" : "shipped are " + all;
  if (!result->devices.empty())
    text += "; none is for " + result->devices.front().name +
            ", so the heuristic serves what is not tuned here";
  result->findings.push_back(
      {"tuned files", result->devices.empty() ? Grade::kOk : Grade::kWarning, std::move(text),
       result->devices.empty() ? "" : "tune it: 'scanjit tune gated_delta_h --model NAME --tp N'"});
}

int run_doctor(Session& session, const EngineOptions& options) {
  Examination result;
  look_at_driver(session.environment, &result);
  look_at_nvrtc(session.environment, &result);
  look_at_cache(options.cache_dir, session.environment, &result);
  look_at_tuned_files(&result);
  const int exit = result.usable_gpu ? kExitOk : kExitEnvironment;
  if (session.json) {
    Json checks = Json::array(), devices = Json::array();
    for (const Finding& finding : result.findings) {
      Json json = {
          {"subject", finding.subject}, {"grade", word(finding.grade)}, {"text", finding.text}};
      if (!finding.fix.empty()) json["fix"] = finding.fix;
      checks.push_back(std::move(json));
    }
    for (const cuda::DeviceFacts& device : result.devices) {
      devices.push_back({{"name", device.name},
                         {"uuid", device.uuid},
                         {"arch", device.arch},
                         {"driver", device.driver},
                         {"cuda", device.cuda_version},
                         {"sm_count", device.sm_count},
                         {"l2_bytes", device.l2_bytes},
                         {"total_bytes", device.total_bytes},
                         {"smem_optin_bytes", device.smem_optin_bytes},
                         {"sm_clock_khz", device.sm_clock_khz},
                         {"memory_bus_bits", device.memory_bus_bits}});
    }
    Json fields;
    fields["version"] = engine::version();
    fields["usable_gpu"] = result.usable_gpu;
    fields["arch"] = known_arch(result.devices);
    fields["checks"] = std::move(checks);
    fields["devices"] = std::move(devices);
    for (auto& [name, value] : result.facts.items()) fields[name] = value;
    session.print_json("scanjit-doctor/1", std::move(fields));
    return exit;
  }
  session.out << "scanjit " << engine::version() << '\n';
  for (const Finding& finding : result.findings) {
    std::string subject = finding.subject;
    subject.resize(kTextColumn - 9, ' ');
    std::string grade = word(finding.grade);
    grade.resize(9, ' ');
    session.out << grade << subject << wrapped(printable(finding.text), kWidth, kTextColumn)
                << '\n';
    if (!finding.fix.empty()) {
      session.out << std::string(kTextColumn, ' ') << "-> "
                  << wrapped(finding.fix, kWidth, kTextColumn + 3) << '\n';
    }
  }
  session.out << (result.usable_gpu ? "This machine can compile, tune and run."
                                    : "This machine cannot run kernels: there is no usable GPU.")
              << std::endl;
  return exit;
}

}  // namespace

Command add_doctor(CLI::App& parent, Session& session) {
  auto options = std::make_shared<EngineOptions>();
  CLI::App* app = parent.add_subcommand(
      "doctor", "Driver, NVRTC, GPUs, cache directory, tuned files: what is there and what to fix");
  add_session_flags(*app, session);
  add_cache_dir_flag(*app, options->cache_dir);
  app->footer(
      "Example: is this container fit to serve? (exit status 3: no usable GPU)\n  scanjit doctor");
  return {app, [options](Session& s) { return run_doctor(s, *options); }};
}

}  // namespace scanjit::cli
