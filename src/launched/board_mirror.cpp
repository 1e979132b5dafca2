#include "launched/board_mirror.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace distgrad {
namespace {

// In worlds of at most this many ranks, each rank in Python counts the calls that it has driven, in
// a word of the slots behind those of the ranks (docs/protocol.md).
constexpr int kMostInStep = 512;

enum class Part : char { kPort = 'p', kCalls = 'c', kSlot = 's', kWaits = 'w', kNote = 'n' };

struct SlotBytes {
  std::uint64_t case_id;
  std::int64_t started_ns;
  std::int32_t step;
  Phase phase;
};

struct NoteHead {
  std::uint32_t version;
  std::int32_t waits;
};

std::atomic<std::uint64_t>& calls_word(const Board& board, int rank) {
  auto* words = const_cast<RankSlot*>(&board.ranks[kMostInStep]);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(words)[rank];
}

// Appends a patch: the part, the rank, the size and the bytes.
void add(BoardPatches& patches, Part part, int rank, std::string_view bytes) {
  const auto number = static_cast<std::uint32_t>(rank),
             size = static_cast<std::uint32_t>(bytes.size());
  patches += static_cast<char>(part);
  patches.append(reinterpret_cast<const char*>(&number), sizeof number);
  patches.append(reinterpret_cast<const char*>(&size), sizeof size).append(bytes);
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
bool read(std::string_view bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  return true;
}

// Calls take(part, rank, bytes) for each patch, and stops at one that is cut off.
template <class Take>
void for_each_part(std::string_view patches, Take take) {
  constexpr std::size_t kHead = 1 + 2 * sizeof(std::uint32_t);
  while (patches.size() >= kHead) {
    const auto part = static_cast<Part>(patches[0]);
    std::uint32_t rank = 0, size = 0;
    read(patches.substr(1), rank);
    read(patches.substr(1 + sizeof rank), size);
    patches.remove_prefix(kHead);
    if (size > patches.size() || rank >= static_cast<std::uint32_t>(kMaxRanks)) return;
    take(part, static_cast<int>(rank), patches.substr(0, size));
    patches.remove_prefix(size);
  }
}

// Writes in the same order as the rank does.
void write_slot(RankSlot& slot, const SlotBytes& bytes) {
  slot.step = bytes.step;
  slot.phase = bytes.phase;
  slot.started_ns = bytes.started_ns;
  slot.case_id = bytes.case_id;
}

void write_note(CallSlot& slot, const NoteHead& head, std::string_view text) {
  text = text.substr(0, sizeof slot.text - 1);
  slot.version = head.version | 1;  // an odd version says that the note is being written
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(slot.text, text.data(), text.size());
  slot.text[text.size()] = '\0';
  slot.waits = head.waits;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  slot.version = head.version;
}

}  // namespace

BoardWatch::BoardWatch(MappedMemory board, int rank, int world_size)
    : memory_(std::move(board)),
      board_(*reinterpret_cast<const Board*>(memory_.get())),
      rank_(rank),
      counts_calls_(world_size <= kMostInStep) {}

// The rank writes a case's number last: as long as it stays the same, the rest belongs to it.
bool BoardWatch::read_slot() {
  const RankSlot& slot = board_.ranks[rank_];
  const std::uint64_t case_id = slot.case_id;
  const std::int32_t step = slot.step;
  const Phase phase = slot.phase;
  const std::int64_t started = slot.started_ns;
  if (slot.case_id != case_id) return false;  // the next look sees more
  if (case_id == case_id_ && step == step_ && phase == phase_ && started == started_ns_)
    return false;
  case_id_ = case_id, step_ = step, phase_ = phase, started_ns_ = started;
  return true;
}

bool BoardWatch::read_note() {
  const CallSlot& slot = board_.calls[rank_];
  const std::uint32_t version = slot.version;
  if (version == version_ || version % 2 != 0) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::string text(slot.text, strnlen(slot.text, sizeof slot.text - 1));
  const std::int32_t waits = slot.waits;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (slot.version != version) return false;
  version_ = version, waits_ = waits, note_ = std::move(text);
  return true;
}

BoardPatches BoardWatch::changes() {
  BoardPatches patches;
  if (rank_ == 0 && board_.store_port != port_) {
    port_ = board_.store_port;
    add(patches, Part::kPort, rank_, bytes_of(port_));
  }
  if (counts_calls_ && calls_word(board_, rank_) != calls_) {
    calls_ = calls_word(board_, rank_);
    add(patches, Part::kCalls, rank_, bytes_of(calls_));
  }
  // The note goes before the slot: who sees that a rank is through with a case then sees all that
  // it noted in it.
  const bool noted = read_note();
  if (noted)
    add(patches, Part::kNote, rank_, std::string(bytes_of(NoteHead{version_, waits_})) + note_);
  if (const std::int32_t waits = board_.calls[rank_].waits;
      waits != waits_ && board_.calls[rank_].version == version_) {
    waits_ = waits;
    add(patches, Part::kWaits, rank_, bytes_of(waits_));
  }
  if (read_slot())
    add(patches, Part::kSlot, rank_, bytes_of(SlotBytes{case_id_, started_ns_, step_, phase_}));
  return patches;
}

bool apply_changes(Board& board, int rank, const BoardPatches& patches) {
  bool is_public = false;
  for_each_part(patches, [&](Part part, int of, std::string_view bytes) {
    if (of != rank) return;
    std::int32_t word = 0;
    std::uint64_t calls = 0;
    SlotBytes slot{};
    NoteHead head{};
    if (part == Part::kPort && rank == 0 && read(bytes, word)) {
      board.store_port = word;
      is_public = true;
    } else if (part == Part::kCalls && rank < kMostInStep && read(bytes, calls)) {
      calls_word(board, rank) = calls;
      is_public = true;
    } else if (part == Part::kSlot && read(bytes, slot)) {
      // A rank at its next case is through with the last, even if nobody has seen that.
      is_public =
          is_public || slot.phase == Phase::kReply || slot.case_id != board.ranks[rank].case_id;
      write_slot(board.ranks[rank], slot);
    } else if (part == Part::kWaits && read(bytes, word)) {
      board.calls[rank].waits = word;
    } else if (part == Part::kNote && read(bytes, head)) {
      write_note(board.calls[rank], head, bytes.substr(sizeof head));
    }
  });
  return is_public;
}

BoardPatches public_part(const Board& board, int rank, int world_size) {
  BoardPatches patches;
  if (rank == 0) add(patches, Part::kPort, rank, bytes_of(board.store_port.load()));
  if (world_size <= kMostInStep)
    add(patches, Part::kCalls, rank, bytes_of(calls_word(board, rank).load()));
  const RankSlot& slot = board.ranks[rank];
  add(patches, Part::kSlot, rank,
      bytes_of(SlotBytes{slot.case_id, slot.started_ns, slot.step, slot.phase}));
  return patches;
}

void apply_public_part(Board& board, const BoardPatches& patches) {
  for_each_part(patches, [&](Part part, int of, std::string_view bytes) {
    std::int32_t port = 0;
    std::uint64_t calls = 0;
    SlotBytes slot{};
    if (part == Part::kPort && read(bytes, port)) board.store_port = port;
    if (part == Part::kCalls && of < kMostInStep && read(bytes, calls))
      calls_word(board, of) = calls;
    if (part == Part::kSlot && read(bytes, slot)) write_slot(board.ranks[of], slot);
  });
}

}  // namespace distgrad
