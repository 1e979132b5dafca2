// One row a collective: what it is in one process, and for real. Each is the Python of the record
// in src/collectives that has its name.
#include <array>

#include "repro/call_source.h"

namespace distgrad {
namespace {

using enum CollectiveKind;
using Source = const CallSource&;

std::string reduced(Source call) {
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return "y = torch.stack(xs).sum(0)\n";
    case ReduceOp::kAvg:
      return "y = torch.stack(xs).sum(0) / len(xs)\n";
    case ReduceOp::kPremulSum:
      return "y = (torch.stack(xs) * $factor).sum(0)\n";
    case ReduceOp::kMax:
      return "y = torch.stack(xs).amax(0)\n";
    case ReduceOp::kMin:
      return "y = torch.stack(xs).amin(0)\n";
    default:
      return "y = xs[0]\nfor x in xs[1:]:\n    y = y * x\n";
  }
}

// ReduceOp of a plain call: torch's own word for each.
std::string plain_op(Source call) {
  switch (call.spec->op) {
    case ReduceOp::kAvg:
      return "dist.ReduceOp.AVG";
    case ReduceOp::kPremulSum:
      return "dist._make_nccl_premul_sum($factor)";
    default:
      return "$op";
  }
}

constexpr const char* kClone = "y = x.clone(memory_format=torch.contiguous_format)\n";
// Zeros that autograd connects with y; a product with 0 would keep NaN.
constexpr const char* kZerosOffRoot =
    "if $rank != $root:  # what is left there is no result\n"
    "    y = torch.where(torch.tensor(False), y, torch.zeros_like(y.detach()))\n";

// all_reduce
std::string all_reduce_simulation(Source call) { return reduced(call) + "return [y] * len(xs)\n"; }
std::string all_reduce_forward(Source call) { return all_reduce_source(call, "x", "y"); }
std::string all_reduce_adjoint(Source call) {
  return "g = g.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(g$group_arg)\n" +
         reduction_adjoint_source(call);
}
std::string all_reduce_in_place(Source call) {
  return kClone + ("dist.all_reduce(y, " + plain_op(call) + "$group_arg)\n");
}

// reduce
std::string reduce_simulation(Source call) {
  return reduced(call) +
         "return [y if rank == $root else torch.zeros_like(y) for rank in range(len(xs))]\n";
}
std::string reduce_forward(Source call) {
  std::string text = call.spec->op == ReduceOp::kPremulSum ? "y = x * $factor\n" : kClone;
  text += "dist.reduce(y, op=$op, $to)\n";
  if (call.spec->op == ReduceOp::kAvg) text += "y /= $size\n";
  return text + "if $rank != $root:\n    y = torch.zeros_like(y)\n";
}
std::string reduce_adjoint(Source call) {
  return "g = g.clone(memory_format=torch.contiguous_format)\ndist.broadcast(g, $from)\n" +
         reduction_adjoint_source(call);
}
std::string reduce_in_place(Source call) {
  return kClone + ("dist.reduce(y, op=" + plain_op(call) + ", $to)\n") + kZerosOffRoot;
}

// broadcast
std::string broadcast_simulation(Source) { return "return [xs[$root]] * len(xs)\n"; }
std::string broadcast_forward(Source) { return std::string(kClone) + "dist.broadcast(y, $from)\n"; }
std::string broadcast_adjoint(Source) {
  return "dx = g.clone(memory_format=torch.contiguous_format)\n"
         "dist.reduce(dx, $to)\n"
         "if $rank != $root:\n"
         "    dx = torch.zeros_like(dx)\n";
}

// all_gather
std::string all_gather_simulation(Source call) {
  return "return [" + joined_source(call, "xs") + "] * len(xs)\n";
}
std::string all_gather_forward(Source call) {
  std::string text = gathered_source(call, "x", "parts");
  if (call.is_uneven) text += "ctx.sizes = [part.size($dim) for part in parts]\n";
  return text + "y = " + joined_source(call, "parts") + "\n";
}
std::string all_gather_adjoint(Source call) {
  return "g = g.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(g$group_arg)\ndx = " +
         own_piece_source(call) + "\n";
}
std::string all_gather_in_place(Source call) {
  return gathered_source(call, "x", "parts") + "y = " + joined_source(call, "parts") + "\n";
}

// gather
std::string gather_simulation(Source call) {
  return "y = " + joined_source(call, "xs") + "\n" +
         "return [y if rank == $root else torch.zeros_like(y) for rank in range(len(xs))]\n";
}
std::string gather_forward(Source call) {
  if (call.is_uneven)
    return all_gather_forward(call) + "if $rank != $root:\n    y = torch.zeros_like(y)\n";
  return "x = x.contiguous()\n"
         "parts = [torch.zeros_like(x) for _ in range($size)]\n"
         "dist.gather(x, parts if $rank == $root else None, $to)\n"
         "y = " +
         joined_source(call, "parts") + "  # zeros but on root\n";
}
std::string gather_adjoint(Source call) {
  return "g = g.clone(memory_format=torch.contiguous_format)\ndist.broadcast(g, $from)\ndx = " +
         own_piece_source(call) + "\n";
}

std::string gather_in_place(Source call) {
  if (call.is_uneven)
    return gathered_source(call, "x", "parts") + "y = " + joined_source(call, "parts") + "\n" +
           "if $rank != $root:\n    y = torch.zeros_like(y)\n";
  return gather_forward(call);
}

// reduce_scatter
std::string own_chunk(Source call, const std::string& what) {
  return "y = " + chunks_source(call, what) +
         "[$rank].clone(memory_format=torch.contiguous_format)\n";
}
std::string simulated_chunks(Source call, const std::string& what) {
  return call.spec->splits.empty() ? what + ".chunk(len(xs), $dim)"
                                   : what + ".split($splits, $dim)";
}
std::string reduce_scatter_simulation(Source call) {
  return reduced(call) + "return list(" + simulated_chunks(call, "y") + ")\n";
}
// Gloo reduces and scatters sums only, and chunks of one size.
std::string reduce_scatter_forward(Source call) {
  return all_reduce_source(call, "x", "total") + own_chunk(call, "total");
}
std::string joined_cotangents(Source call, const std::string& out) {
  CallSource cotangents = call;
  cotangents.is_uneven = !call.spec->splits.empty();
  return gathered_source(cotangents, "g", "parts") + out + " = torch.cat(parts, $dim)\n";
}
std::string reduce_scatter_adjoint(Source call) {
  return joined_cotangents(call, "g") + reduction_adjoint_source(call);
}
std::string plain_chunks(Source call) {
  return "chunks = [chunk.contiguous() for chunk in " + chunks_source(call, "x") + "]\n" +
         "y = torch.zeros_like(chunks[$rank].detach())\n";
}
std::string reduce_scatter_in_place(Source call) {
  return plain_chunks(call) + "dist.reduce_scatter(y, chunks, " + plain_op(call) + "$group_arg)\n";
}

// scatter
std::string scatter_simulation(Source call) {
  return "return list(" + simulated_chunks(call, "xs[$root]") + ")\n";
}
std::string scatter_forward(Source call) {
  if (!call.spec->splits.empty()) return broadcast_forward(call) + own_chunk(call, "y");
  return plain_chunks(call) + "dist.scatter(y, chunks if $rank == $root else None, $from)\n";
}
std::string scatter_adjoint(Source call) {
  return joined_cotangents(call, "dx") + "if $rank != $root:\n    dx = torch.zeros_like(dx)\n";
}
std::string scatter_in_place(Source call) {
  return plain_chunks(call) + "dist.scatter(y, chunks if $rank == $root else None, $from)\n";
}

// all_to_all
std::string all_to_all_simulation(Source call) {
  const char* cut = call.spec->splits.empty()
                        ? "sent = [x.chunk(len(xs), $dim) for x in xs]\n"
                        : "sent = [x.split(sizes, $dim) for x, sizes in zip(xs, $splits)]\n";
  return std::string(cut) +
         "return [torch.cat([chunks[to] for chunks in sent], $dim) for to in range(len(xs))]\n";
}
// What each rank sends here: shapes go ahead where they are not the own ones.
std::string received_shapes(Source call) {
  if (call.spec->splits.empty() && !call.is_uneven)
    return "shapes = [chunk.shape for chunk in chunks]\n";
  return "sent = [None] * $size\n"
         "dist.all_gather_object(sent, [chunk.shape for chunk in chunks]$group_arg)\n"
         "shapes = [shapes[$rank] for shapes in sent]\n";
}
std::string all_to_all_forward(Source call) {
  return "chunks = " + chunks_source(call, "x") + "\n" + received_shapes(call) +
         "ctx.sizes, ctx.shapes = [shape[$dim] for shape in shapes], [chunk.shape for chunk in "
         "chunks]\n"
         "y = torch.cat(exchanged(chunks, shapes$group_arg), $dim)\n";
}
std::string all_to_all_adjoint(Source) {
  return "dx = torch.cat(exchanged(g.split(ctx.sizes, $dim), ctx.shapes$group_arg), $dim)\n";
}
std::string all_to_all_in_place(Source call) {
  return "chunks = " + chunks_source(call, "x") + "\n" + received_shapes(call) +
         "y = torch.cat(exchanged(chunks, shapes$group_arg), $dim)\n";
}

// send_recv
std::string send_recv_simulation(Source) {
  return "source = {to: source for source, to in $pairs}\n"
         "return [xs[source[rank]] if rank in source else torch.zeros_like(x) for rank, x in "
         "enumerate(xs)]\n";
}
std::string group_rank(Source call, const std::string& rank) {
  return call.has_group() ? "dist.get_global_rank(group, " + rank + ")" : rank;
}
std::string receive(Source call) {
  return "shapes = [None] * $size\n"
         "dist.all_gather_object(shapes, x.shape$group_arg)\n"
         "rank, pairs = $rank, $pairs\n"
         "sends = [dist.isend(x.contiguous(), " +
         group_rank(call, "to") + "$group_arg) for source, to in pairs if source == rank != to]\n";
}
std::string send_recv_forward(Source call) {
  return receive(call) +
         "y = torch.zeros_like(x, memory_format=torch.contiguous_format)\n"
         "for source, to in pairs:\n"
         "    if to == rank:\n"
         "        y = x.clone() if source == rank else x.new_zeros(shapes[source])\n"
         "        if source != rank:\n"
         "            dist.recv(y, " +
         group_rank(call, "source") +
         "$group_arg)\n"
         "for send in sends:\n"
         "    send.wait()\n";
}
std::string send_recv_adjoint(Source call) {
  return "rank, pairs = $rank, $pairs\n"
         "g = g.contiguous()\n"
         "sends = [dist.isend(g, " +
         group_rank(call, "source") +
         "$group_arg) for source, to in pairs if to == rank != source]\n"
         "dx = torch.zeros_like(x, memory_format=torch.contiguous_format)\n"
         "for source, to in pairs:\n"
         "    if source == rank:\n"
         "        back = g if to == rank else torch.empty_like(dx)\n"
         "        if to != rank:\n"
         "            dist.recv(back, " +
         group_rank(call, "to") +
         "$group_arg)\n"
         "        dx += back\n"
         "for send in sends:\n"
         "    send.wait()\n";
}
std::string send_recv_in_place(Source call) {
  return receive(call) +
         "y = torch.where(torch.tensor(False), x, torch.zeros_like(x.detach()))\n"
         "for source, to in pairs:\n"
         "    if to == rank:\n"
         "        y = x.clone() if source == rank else torch.zeros(shapes[source], dtype=x.dtype)\n"
         "        if source != rank:\n"
         "            dist.recv(y, " +
         group_rank(call, "source") +
         "$group_arg)\n"
         "for send in sends:\n"
         "    send.wait()\n";
}

// copy and slice, local in forward
std::string copy_simulation(Source) { return "return xs\n"; }
std::string copy_forward(Source) { return "y = x.clone()\n"; }
std::string copy_adjoint(Source) { return "dx = g\n"; }
std::string slice_simulation(Source call) {
  return "return [" + simulated_chunks(call, "x") + "[rank] for rank, x in enumerate(xs)]\n";
}
std::string slice_forward(Source call) { return own_chunk(call, "x"); }
std::string slice_adjoint(Source call) {
  return "dx = torch.zeros_like(x, memory_format=torch.contiguous_format)\n" +
         chunks_source(call, "dx") + "[$rank].copy_(g)\n";
}
std::string slice_in_place(Source call) { return "y = " + chunks_source(call, "x") + "[$rank]\n"; }

constexpr std::array<CollectiveSource, kCollectives.size()> kSources = {{
    {kAllReduce, all_reduce_simulation, all_reduce_forward, all_reduce_adjoint,
     all_reduce_in_place},
    {kReduce, reduce_simulation, reduce_forward, reduce_adjoint, reduce_in_place},
    {kBroadcast, broadcast_simulation, broadcast_forward, broadcast_adjoint, broadcast_forward},
    {kAllGather, all_gather_simulation, all_gather_forward, all_gather_adjoint,
     all_gather_in_place},
    {kGather, gather_simulation, gather_forward, gather_adjoint, gather_in_place},
    {kReduceScatter, reduce_scatter_simulation, reduce_scatter_forward, reduce_scatter_adjoint,
     reduce_scatter_in_place},
    {kScatter, scatter_simulation, scatter_forward, scatter_adjoint, scatter_in_place},
    {kAllToAll, all_to_all_simulation, all_to_all_forward, all_to_all_adjoint, all_to_all_in_place},
    {kSendRecv, send_recv_simulation, send_recv_forward, send_recv_adjoint, send_recv_in_place},
    {kCopy, copy_simulation, copy_forward, copy_adjoint, copy_forward},
    {kSlice, slice_simulation, slice_forward, slice_adjoint, slice_in_place},
}};

}  // namespace

const CollectiveSource& source_of(CollectiveKind kind) {
  return kSources[static_cast<std::size_t>(kind)];
}

}  // namespace distgrad
