#include "protocol/messages.h"

#include "base/memory_file.h"
#include "protocol/board.h"
#include "protocol/noted_call_json.h"
#include "protocol/result_fields.h"

namespace distgrad {

// --- What zygotes are asked and say ---

static std::string_view message_name(WorkerRole role) {
  return role == WorkerRole::kRank ? "rank" : "simulator";
}

static std::optional<WorkerRole> message_named(std::string_view name, WorkerRole) {
  if (name == "rank") return WorkerRole::kRank;
  if (name == "simulator") return WorkerRole::kSimulator;
  return std::nullopt;
}

template <class Archive>
static void fields(Archive& a, Like<ForkWorker> auto& fork) {
  auto& [worker, role, rank, world_size, exec, place] = fork;
  a("worker", worker);
  a("role", role);
  a.integer("world_size", world_size, 1, kMaxRanks);
  a.integer("rank", rank, 0, world_size - 1);
  a.optional("exec", exec);
  a.optional("place", place, -1);
  if constexpr (Archive::kReads)
    if (place != -1) check_rank(place, world_size);
}

static void fields(auto& a, Like<KillWorker> auto& kill) {
  auto& [worker] = kill;
  a("worker", worker);
}

static void fields(auto& a, Like<LookAtWorker> auto& look) {
  auto& [worker] = look;
  a("worker", worker);
}

static void fields(auto& a, Like<ZygoteReady> auto& ready) {
  auto& [protocol, torch, takes_expected] = ready;
  a("protocol", protocol);
  a("torch", torch);
  a.optional("takes_expected", takes_expected);
}

static void fields(auto& a, Like<WorkerForked> auto& forked) {
  auto& [worker, pid] = forked;
  a("worker", worker);
  a.integer("pid", pid, 1, kMostInt);
}

static void fields(auto& a, Like<WorkerExited> auto& exited) {
  auto& [worker, wait_status] = exited;
  a("worker", worker);
  a("wait_status", wait_status);
}

static void fields(auto& a, Like<ForkFailed> auto& failed) {
  auto& [worker, message] = failed;
  a("worker", worker);
  a("message", message);
}

static void fields(auto& a, Like<WorkerSeen> auto& seen) {
  auto& [worker, state, waited_ns, at] = seen;
  a("worker", worker);
  a.integer("state", state, 0, 127);
  a("waited_ns", waited_ns);
  a.optional("at", at);
}

static void fields(auto& a, Like<ZygoteLost> auto& lost) {
  auto& [message, is_final] = lost;
  a("message", message);
  a("is_final", is_final);
}

namespace {

// Name the alternatives of each message, in their order.
template <class Message>
using Kinds = std::array<std::string_view, std::variant_size_v<Message>>;
constexpr Kinds<ZygoteRequest> kZygoteRequests = {"fork", "kill", "look"};
constexpr Kinds<ZygoteEvent> kZygoteEvents = {"ready",       "forked", "exited",
                                              "fork_failed", "seen",   "lost"};
constexpr Kinds<AnyRequest> kRequests = {"simulate", "run"};
constexpr Kinds<AnyResult> kReplies = {"simulation", "result"};

template <class Message>
Json write_message(const Message& message, const Kinds<Message>& kinds, PayloadWriter& out) {
  FieldWriter writer(out);
  std::visit([&](const auto& what) { fields(writer, what); }, message);
  Json json = writer.take();
  json["kind"] = kinds[message.index()];
  return json;
}

template <class Message, std::size_t I = 0>
Message read_message(const Json& json, const Kinds<Message>& kinds, const PayloadReader& in) {
  const std::string& kind = read_text(field(json, "kind"));
  if constexpr (I == std::variant_size_v<Message>) {
    throw BadMessage("unknown message \"" + kind + '"');
  } else {
    if (kind != kinds[I]) return read_message<Message, I + 1>(json, kinds, in);
    Message message(std::in_place_index<I>);
    FieldReader reader(json, in);
    fields(reader, std::get<I>(message));
    return message;
  }
}

template <class T, class Read>
Decoded<T> decoded(const Frame& frame, Read read) {
  try {
    return {read(parse_header(frame.header)), ""};
  } catch (const BadMessage& bad) {
    return {std::nullopt, bad.what()};
  }
}

// Sends the expected values by a descriptor of their own, to where their message left them.
Json write_expected(const ExpectedValues& expected) {
  PayloadWriter out(&expected.payload);
  FieldWriter writer(out);
  writer("bytes", std::uint64_t{expected.payload.values.size_bytes()});
  writer("gradients", expected.gradients);
  writer("steps", expected.steps);
  return writer.take();
}

std::shared_ptr<const ExpectedValues> read_expected(const Json& json, const Frame& frame) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 48;
  const auto bytes =
      static_cast<std::size_t>(read_integer(field(json, "bytes"), sizeof(double), kMostBytes));
  if (frame.fds.size() != 1) throw BadMessage("expected values come with one descriptor");
  std::string error;
  const MappedMemory memory = map_sealed(frame.fds[0].get(), bytes, &error);
  if (!memory) throw BadMessage(error);
  auto expected = std::make_shared<ExpectedValues>();
  const auto* first = reinterpret_cast<const double*>(memory.get());
  expected->payload = {nullptr, {first, bytes / sizeof(double)}, memory};
  const PayloadReader in(frame, &expected->payload);
  FieldReader reader(json, in);
  reader("gradients", expected->gradients);
  reader("steps", expected->steps);
  return expected;
}

}  // namespace

SharedFrame encode(const ZygoteRequest& request, std::vector<std::shared_ptr<const UniqueFd>> fds) {
  PayloadWriter out;
  return out.finish(write_message(request, kZygoteRequests, out), std::move(fds));
}

SharedFrame encode(const ZygoteEvent& event) {
  PayloadWriter out;
  return out.finish(write_message(event, kZygoteEvents, out));
}

SharedFrame encode_request(std::uint64_t id, const AnyRequest& request,
                           const ExpectedValues* expected) {
  PayloadWriter out;
  Json json = write_message(request, kRequests, out);
  json["id"] = id;
  if (!expected) return out.finish(json);
  json["expected"] = write_expected(*expected);
  return out.finish(json, {expected->payload.fd});
}

SharedFrame encode(const WorkReply& reply, const SharedPayload* expected) {
  const auto& [id, what, error, output, elapsed_ns, entered, payload] = reply;
  PayloadWriter out(expected);
  Json json = write_message(what, kReplies, out);
  json["id"] = id;
  if (error) {
    FieldWriter writer(out);
    fields(writer, *error);
    json["error"] = writer.take();
  }
  if (!output.empty()) json["output"] = output;
  json["elapsed_ns"] = elapsed_ns;
  for (const NotedCall& call : entered) json["entered"].push_back(write_noted_call(call));
  return out.finish(json);
}

Decoded<ZygoteRequest> decode_zygote_request(const Frame& frame) {
  return decoded<ZygoteRequest>(frame, [&](const Json& json) {
    return read_message<ZygoteRequest>(json, kZygoteRequests, PayloadReader(frame));
  });
}

Decoded<ZygoteEvent> decode_zygote_event(const Frame& frame) {
  return decoded<ZygoteEvent>(frame, [&](const Json& json) {
    return read_message<ZygoteEvent>(json, kZygoteEvents, PayloadReader(frame));
  });
}

Decoded<WorkRequest> decode_request(const Frame& frame) {
  return decoded<WorkRequest>(frame, [&](const Json& json) {
    WorkRequest request;
    request.what = read_message<AnyRequest>(json, kRequests, PayloadReader(frame));
    request.id = read_id(field(json, "id"));
    const Json* expected = optional_field(json, "expected");
    if (expected && std::holds_alternative<RunRequest>(request.what))
      request.expected = read_expected(*expected, frame);
    return request;
  });
}

Decoded<WorkReply> decode_reply(const Frame& frame, const SharedPayload* expected) {
  return decoded<WorkReply>(frame, [&](const Json& json) {
    WorkReply reply;
    reply.id = read_id(field(json, "id"));
    const PayloadReader in(frame, expected);
    reply.what = read_message<AnyResult>(json, kReplies, in);
    if (frame.payload_fd) reply.payload = {frame.payload_fd, frame.payload, frame.keeper};
    reply.elapsed_ns = read_integer(field(json, "elapsed_ns"), 0, kMostInteger);
    if (const Json* output = optional_field(json, "output")) reply.output = read_text(*output);
    if (const Json* entered = optional_field(json, "entered"))
      for (const Json& call : read_list(*entered)) reply.entered.push_back(read_noted_call(call));
    if (std::holds_alternative<Simulation>(reply.what)) {
      FieldReader reader(json, in);
      reader.optional("error", reply.error);
    }
    return reply;
  });
}

}  // namespace distgrad
