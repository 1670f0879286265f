#include "cuda/device_facts.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "os/posix_file_system.hpp"

namespace scanjit::cuda {
namespace {

std::string uuid_text(const CUuuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string arch_name(int cc_major, int cc_minor) {
  const std::string name = "sm_" + std::to_string(cc_major) + std::to_string(cc_minor);
  // From 9.0 to 11 the tensor-core instructions that matter exist under the suffix only.
  return cc_major >= 9 && cc_major <= 11 ? name + "a" : name;
}

std::string parse_driver_version(const std::string& proc_text) {
  // The first word of numbers and dots: "... Kernel Module  580.159.04  Release Build ...".
  for (std::size_t i = 0; i < proc_text.size();) {
    if (!is_digit(proc_text[i]) || (i > 0 && proc_text[i - 1] != ' ')) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < proc_text.size() && (is_digit(proc_text[end]) || proc_text[end] == '.')) ++end;
    std::string word = proc_text.substr(i, end - i);
    const auto dots = std::count(word.begin(), word.end(), '.');
    const bool whole =
        end == proc_text.size() || std::isspace(static_cast<unsigned char>(proc_text[end])) != 0;
    if (whole && dots >= 1 && is_digit(word.back())) return word;
    i = end;
  }
  return {};
}

Result<int> device_count(const DriverApi& api) {
  int count = 0;
  const CUresult result = api.cuDeviceGetCount(&count);
  if (result == CUDA_ERROR_NO_DEVICE) return 0;
  SCANJIT_TRY(check(api, result, "cuDeviceGetCount"));
  return count;
}

Result<CUdevice> device_of_ordinal(const DriverApi& api, int ordinal) {
  SCANJIT_ASSIGN_OR_RETURN(const int count, device_count(api));
  if (count == 0) return unsupported("the CUDA driver sees no device");
  if (ordinal < 0 || ordinal >= count) {
    return invalid_argument("device is " + std::to_string(ordinal) +
                            ", the process sees devices 0 to " + std::to_string(count - 1));
  }
  CUdevice device = 0;
  SCANJIT_TRY(check(api, api.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  return device;
}

int context_sm_count(const DriverApi& api, CUcontext context, int device_sm_count) {
  if (api.cuCtxGetDevResource == nullptr) return device_sm_count;
  // Not every kind of context has this resource; the device's count stands then.
  CUdevResource resource = {};
  if (api.cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
      resource.sm.smCount == 0)
    return device_sm_count;
  return std::min(device_sm_count, static_cast<int>(resource.sm.smCount));
}

Result<DeviceFacts> device_facts(const DriverApi& api, CUdevice device, CUcontext context) {
  DeviceFacts facts;
  facts.device = device;
  std::array<char, 256> name = {};
  SCANJIT_TRY(check(api,
                    api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device),
                    "cuDeviceGetName"));
  facts.name = name.data();
  CUuuid uuid = {};
  SCANJIT_TRY(check(api, api.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  facts.uuid = uuid_text(uuid);
  std::size_t total = 0;
  SCANJIT_TRY(check(api, api.cuDeviceTotalMem(&total, device), "cuDeviceTotalMem"));
  facts.total_bytes = static_cast<std::int64_t>(total);

  int l2 = 0, pools = 0;
  const std::pair<CUdevice_attribute, int*> wanted[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &facts.cc_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &facts.cc_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts.sm_count},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &facts.smem_optin_bytes},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &facts.smem_per_sm_bytes},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &facts.smem_reserved_bytes},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &facts.regs_per_sm},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, &facts.regs_per_block},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &facts.threads_per_sm},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &facts.threads_per_block},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &facts.blocks_per_sm},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &facts.memory_bus_bits},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &facts.memory_clock_khz},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &facts.sm_clock_khz},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &pools},
  };
  for (const auto& [attribute, value] : wanted) {
    SCANJIT_TRY(
        check(api, api.cuDeviceGetAttribute(value, attribute, device), "cuDeviceGetAttribute"));
  }
  facts.l2_bytes = l2;
  facts.memory_pools = pools != 0;
  facts.arch = arch_name(facts.cc_major, facts.cc_minor);

  if (context != nullptr) facts.sm_count = context_sm_count(api, context, facts.sm_count);

  int cuda_version = 0;
  SCANJIT_TRY(check(api, api.cuDriverGetVersion(&cuda_version), "cuDriverGetVersion"));
  facts.cuda_version = version_text(cuda_version);
  constexpr std::int64_t kMostBytes = 1 << 16;
  const Result<std::string> proc =
      os::posix_file_system().read_file("/proc/driver/nvidia/version", kMostBytes);
  if (proc.ok()) facts.driver = parse_driver_version(*proc);
  if (facts.driver.empty()) facts.driver = "cuda-" + facts.cuda_version;
  return facts;
}

}  // namespace scanjit::cuda
