#include "fuzz/probe.h"

#include <optional>

namespace distgrad::fuzz {
namespace {

using Json = nlohmann::ordered_json;
using Asks = Probe::Asks;

Json call(const CollectiveTraits& kind, ReduceOp op) {
  Json call;
  call[std::string(kind.name)] = "x";
  if (kind.takes_op && op != ReduceOp::kSum) call["op"] = name_of(op);
  if (kind.takes_op && op == ReduceOp::kPremulSum) call["factor"] = 2.0;
  if (kind.takes_pairs) call["pairs"] = {{0, 1}, {1, 0}};
  return call;
}

Probe probe(const CollectiveTraits& kind, ReduceOp op, Asks asks) {
  Probe probe{Json(), kind.kind, op, asks};
  Json body = call(kind, op);
  Json& p = probe.program;
  p["world_size"] = asks == Asks::kGroups ? 4 : 2;
  Json shape = {4, 4};
  if (asks == Asks::kGroups) {
    p["groups"]["g"] = {{"size", 2}};
    body["group"] = "g";
  }
  if (asks == Asks::kRoot) body["root"] = 1;
  if (asks == Asks::kDim) body["dim"] = 1;
  if (asks == Asks::kSplits) {
    if (kind.exchanges())
      body["splits"] = {{1, 3}, {2, 2}};
    else if (kind.takes_splits)
      body["splits"] = {1, 3};
    else {
      shape[0] = "rank + 1";
      body["dim"] = 0;
    }
  }
  p["inputs"]["x"]["random"] = {{"shape", shape}, {"kind", "integers"}, {"low", 1}, {"high", 3}};
  p["steps"] = Json::array({Json{{"y", std::move(body)}}});
  p["loss"] = "(y * y).sum() * (rank + 1)";
  p["objective"] = "sum";
  return probe;
}

}  // namespace

std::vector<Probe> probes(const Offers& offers) {
  std::vector<Probe> all;
  for (const CollectiveTraits& kind : kCollectives) {
    const Offer& offer = offers[static_cast<std::size_t>(kind.kind)];
    std::optional<ReduceOp> first;
    for (std::size_t op = 0; op < offer.ops.size(); ++op) {
      if (!offer.ops[op]) continue;
      if (!first) first = static_cast<ReduceOp>(op);
      all.push_back(probe(kind, static_cast<ReduceOp>(op), Asks::kOp));
    }
    if (!first) continue;
    all.push_back(probe(kind, *first, Asks::kGroups));
    if (kind.takes_root) all.push_back(probe(kind, *first, Asks::kRoot));
    if (kind.takes_dim) all.push_back(probe(kind, *first, Asks::kDim));
    if (kind.takes_splits || kind.joins()) all.push_back(probe(kind, *first, Asks::kSplits));
  }
  return all;
}

std::string text_of(const Probe& probe) {
  const CollectiveTraits& kind = traits(probe.kind);
  const std::string name(kind.name);
  switch (probe.asks) {
    case Asks::kOp:
      return kind.takes_op ? name + " " + std::string(name_of(probe.op)) : name;
    case Asks::kGroups:
      return name + " in groups";
    case Asks::kRoot:
      return name + " with a root other than 0";
    case Asks::kDim:
      return name + " with a dim other than 0";
    case Asks::kSplits:
      break;
  }
  return name + " of uneven sizes";
}

void take_out(Offers& offers, const Probe& probe) {
  Offer& offer = offers[static_cast<std::size_t>(probe.kind)];
  switch (probe.asks) {
    case Asks::kOp:
      offer.ops[static_cast<std::size_t>(probe.op)] = false;
      break;
    case Asks::kGroups:
      offer.groups = false;
      break;
    case Asks::kRoot:
      offer.root = false;
      break;
    case Asks::kDim:
      offer.dim = false;
      break;
    case Asks::kSplits:
      offer.splits = false;
      break;
  }
}

}  // namespace distgrad::fuzz
