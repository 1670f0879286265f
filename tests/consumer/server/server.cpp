#include "server.hpp"

#include <chrono>
#include <cstring>

namespace server {
namespace {

void* pointer(DeviceAddress address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// A number that depends on the seed, the tensor and the element alone.
std::uint64_t hash(std::uint64_t seed, std::uint64_t tensor, std::uint64_t element) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U + tensor * 0xBF58476D1CE4E5B9U + element;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}
float uniform(std::uint64_t bits) {  // in [-1, 1)
  return static_cast<float>(static_cast<std::int64_t>(bits >> 40) - (1 << 23)) * 0x1p-23F;
}

std::uint16_t bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);  // cut off: these need not be the nearest
}

std::vector<std::uint16_t> random_bf16(std::uint64_t seed, std::uint64_t tensor, std::int64_t count,
                                       float scale) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = bf16(scale * uniform(hash(seed, tensor, i)));
  return values;
}

// Of whole words, in order; every bit of every word counts.
std::uint64_t digest(std::uint64_t start, const std::vector<std::uint64_t>& words) {
  std::uint64_t value = start;
  for (const std::uint64_t word : words) {
    value = (value ^ word) * 0x9E3779B97F4A7C15U;
    value ^= value >> 32;
  }
  return value;
}

}  // namespace

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

scanjit::GatedDeltaHProblem problem_of(const Layer& layer, const Request& request,
                                       std::int64_t slots) {
  scanjit::GatedDeltaHProblem problem;
  problem.packed = true;
  problem.sequences = request.sequences;
  problem.T = request.sequences * request.tokens;
  problem.max_tokens = request.tokens;
  problem.H = layer.H;
  problem.HV = layer.HV;
  problem.K = layer.K;
  problem.V = layer.V;
  problem.has_g = true;
  problem.has_h0 = problem.has_ht = true;
  problem.has_h0_indices = problem.has_ht_indices = true;
  problem.h0_slots = problem.ht_slots = slots;
  return problem;
}

Worker::Worker(const Gpu& gpu, const Layer& layer, std::int64_t slots, std::int64_t first_slot,
               DeviceAddress pool)
    : gpu_(gpu), layer_(layer), slots_(slots), first_slot_(first_slot), pool_(pool) {
  if (failed(gpu_.enter(), "entering the context")) return;
  if (failed(gpu_.make_stream(&stream_), "making a stream")) return;
  const auto take = [&](DeviceAddress* address, std::int64_t bytes) {
    if (!error_.empty() || bytes == 0) return;
    if (failed(gpu_.allocate(static_cast<std::size_t>(bytes), address), "taking device memory"))
      return;
    owned_.push_back(*address);
  };
  const std::int64_t T = layer.most_tokens, N = layer.most_sequences;
  Request largest{"", N, T / N};
  const scanjit::Result<std::int64_t> bytes =
      scanjit::workspace_bound(problem_of(layer, largest, slots));
  if (!bytes.ok()) {
    error_ = bytes.status().to_string();
    return;
  }
  workspace_bytes_ = *bytes;
  const std::int64_t chunks = (T + N * 63) / 64, states = layer.HV * layer.K * layer.V;
  take(&k_, T * layer.H * layer.K * 2);
  take(&w_, T * layer.HV * layer.K * 2);
  take(&u_, T * layer.HV * layer.V * 2);
  take(&v_new_, T * layer.HV * layer.V * 2);
  take(&g_, T * layer.HV * 4);
  take(&h_, chunks * states * 2);
  take(&cu_seqlens_, (N + 1) * 8);
  take(&indices_, N * 8);
  take(&workspace_, workspace_bytes_);
  args_.k = pointer(k_);
  args_.w = pointer(w_);
  args_.u = pointer(u_);
  args_.v_new = pointer(v_new_);
  args_.g = static_cast<const float*>(pointer(g_));
  args_.h = pointer(h_);
  args_.cu_seqlens = pointer(cu_seqlens_);
  args_.h0_indices = args_.ht_indices = pointer(indices_);
  args_.h0 = args_.ht = static_cast<float*>(pointer(pool_));
}

Worker::~Worker() {
  if (stream_ != nullptr) {
    static_cast<void>(gpu_.wait(stream_));
    gpu_.free_stream(stream_);
  }
  for (const DeviceAddress address : owned_) gpu_.free(address);
}

bool Worker::failed(int result, const char* what) {
  if (result == 0) return false;
  if (error_.empty()) error_ = std::string(what) + ": " + gpu_.text(result);
  return true;
}

// The request's inputs on the device; outputs are filled with a pattern, so that a digest does not
// depend on what was there before.
bool Worker::prepare(const Request& request, std::uint64_t seed) {
  const std::int64_t T = request.sequences * request.tokens;
  const auto k = random_bf16(seed, 1, T * layer_.H * layer_.K, 0.1F),
             w = random_bf16(seed, 2, T * layer_.HV * layer_.K, 0.1F),
             u = random_bf16(seed, 3, T * layer_.HV * layer_.V, 1.0F);
  std::vector<float> g(static_cast<std::size_t>(T * layer_.HV));
  for (std::int64_t t = 0; t < T; ++t) {
    // Cumulative inside a chunk of 64 tokens, which begins with its sequence.
    const std::int64_t row = t % request.tokens % 64;
    for (std::int64_t head = 0; head < layer_.HV; ++head)
      g[static_cast<std::size_t>(t * layer_.HV + head)] = -0.05F * static_cast<float>(row + 1);
  }
  std::vector<std::int64_t> cu_seqlens, indices;
  for (std::int64_t n = 0; n <= request.sequences; ++n) cu_seqlens.push_back(n * request.tokens);
  for (std::int64_t n = 0; n < request.sequences; ++n) indices.push_back(first_slot_ + n);
  const auto put = [&](DeviceAddress to, const auto& values) {
    return failed(gpu_.upload(to, values.data(), values.size() * sizeof values[0], stream_),
                  "uploading an input");
  };
  constexpr unsigned char kPattern = 0x5A;
  const std::int64_t chunks = request.sequences * ((request.tokens + 63) / 64);
  const bool bad =
      put(k_, k) || put(w_, w) || put(u_, u) || put(g_, g) || put(cu_seqlens_, cu_seqlens) ||
      put(indices_, indices) ||
      failed(gpu_.fill(h_, kPattern,
                       static_cast<std::size_t>(chunks * layer_.HV * layer_.K * layer_.V * 2),
                       stream_),
             "filling h") ||
      failed(gpu_.fill(v_new_, kPattern, static_cast<std::size_t>(T * layer_.HV * layer_.V * 2),
                       stream_),
             "filling v_new") ||
      failed(gpu_.wait(stream_), "waiting for the inputs");
  return !bad;
}

Answer Worker::finish(scanjit::Engine& engine, const Request& request, double started_ms) {
  Answer answer;
  if (failed(gpu_.wait(stream_), "waiting for the request")) return {error_, 0, 0, ""};
  answer.ms = now_ms() - started_ms;
  const std::int64_t states = layer_.HV * layer_.K * layer_.V;
  const std::int64_t chunks = request.sequences * ((request.tokens + 63) / 64);
  const std::pair<DeviceAddress, std::int64_t> outputs[] = {
      {h_, chunks * states * 2},
      {v_new_, request.sequences * request.tokens * layer_.HV * layer_.V * 2},
      {pool_ + static_cast<DeviceAddress>(first_slot_ * states * 4),
       request.sequences * states * 4}};
  answer.digest = 1;
  for (const auto& [address, bytes] : outputs) {
    std::vector<std::uint64_t> content(static_cast<std::size_t>(bytes + 7) / 8);
    if (failed(gpu_.download(content.data(), address, static_cast<std::size_t>(bytes), stream_),
               "reading back") ||
        failed(gpu_.wait(stream_), "reading back")) {
      return {error_, 0, 0, ""};
    }
    answer.digest = digest(answer.digest, content);
  }
  const auto why = engine.why(problem_of(layer_, request, slots_));
  if (why.ok())
    answer.pick = scanjit::to_string(why->config) + ", " + scanjit::to_string(why->source);
  return answer;
}

Answer Worker::serve(scanjit::Engine& engine, const Request& request, std::uint64_t seed) {
  if (!error_.empty() || !prepare(request, seed)) return {error_, 0, 0, ""};
  const double started_ms = now_ms();
  const scanjit::Status status = engine.gated_delta_h(
      problem_of(layer_, request, slots_), args_, {pointer(workspace_), workspace_bytes_}, stream_);
  if (!status.ok()) return {status.to_string(), 0, 0, ""};
  return finish(engine, request, started_ms);
}

Answer Worker::probe(scanjit::Engine& engine, const Request& request, std::uint64_t seed,
                     bool* missed) {
  *missed = false;
  if (!error_.empty() || !prepare(request, seed)) return {error_, 0, 0, ""};
  const double started_ms = now_ms();
  const scanjit::GatedDeltaHProblem problem = problem_of(layer_, request, slots_);
  Handle graph = nullptr, exec = nullptr;
  for (int attempt = 0; graph == nullptr; ++attempt) {
    if (failed(gpu_.begin_capture(stream_), "beginning a capture")) return {error_, 0, 0, ""};
    const scanjit::Status status =
        engine.gated_delta_h(problem, args_, {pointer(workspace_), workspace_bytes_}, stream_);
    // Ends well in either case: the engine has done nothing that invalidates a capture.
    if (failed(gpu_.end_capture(stream_, &graph), "ending the capture")) return {error_, 0, 0, ""};
    if (status.ok()) break;
    gpu_.free_graph(graph, nullptr);
    graph = nullptr;
    if (status.code() != scanjit::ErrorCode::kCaptureMiss || attempt > 0)
      return {status.to_string(), 0, 0, ""};
    *missed = true;
    const scanjit::Result<scanjit::Plan> plan = engine.plan(problem);
    if (!plan.ok()) return {plan.status().to_string(), 0, 0, ""};
  }
  const bool bad = failed(gpu_.instantiate(graph, &exec), "making a graph executable") ||
                   failed(gpu_.replay(exec, stream_), "replaying a graph");
  Answer answer = bad ? Answer{error_, 0, 0, ""} : finish(engine, request, started_ms);
  gpu_.free_graph(graph, exec);
  return answer;
}

}  // namespace server
