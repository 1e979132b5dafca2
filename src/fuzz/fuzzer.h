// Runs the loop of `distgrad fuzz`: it draws, runs and judges random programs in batches. A failure
// is shrunk, and reported once for each finding, collective and op.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/choices.h"
#include "verify/verify.h"

namespace distgrad {

struct FuzzOptions {
  std::vector<std::string> subjects = {"reference"};
  std::uint64_t seed = 0;
  std::uint64_t first = 0;                          // the index of the first program
  std::optional<std::uint64_t> count;               // programs for each subject
  std::optional<double> seconds;                    // after which no more are drawn
  fuzz::Choices choices = fuzz::default_choices();  // except for what the subjects offer
  std::vector<CollectiveKind> kinds;                // only these; empty: all
  std::string python;     // the interpreter of subjects in Python; empty: the default one
  double timeout_s = 10;  // for one program
};

// Identifies a failure.
struct FuzzKey {
  std::string subject;
  std::string rule;        // a finding, or the kind of an error: "crash", "hang", ..., "invalid"
  std::string collective;  // empty if none is blamed
  std::string op;          // empty if the kind takes none
  auto operator<=>(const FuzzKey&) const = default;
};

struct FuzzFailure {
  FuzzKey key;
  std::uint64_t index = 0;  // of the first program that showed it
  long count = 1;           // of programs
  // Says that it is no wrong gradient but a crash, a hang, an exception, or an invalid program.
  bool is_broken = false;
  std::string text;  // what it means, or the error's message
  // Holds the scenario, as small as possible, with its note and what is expected of the subject.
  nlohmann::ordered_json scenario;
  std::size_t shrinks = 0;  // reductions that were kept
  // False if the search ended before the scenario was as small as possible.
  bool is_minimal = true;
  bool is_probe = false;  // found by probing what the subject offers, before any program was drawn
};

struct FuzzTally {
  std::uint64_t drawn = 0;  // program indices that were finished
  long programs = 0;        // of all subjects
  long matches = 0, mismatches = 0, broken = 0, disputed = 0, skipped = 0;
  std::map<std::string, long> why_skipped;
  // Has what code raised at when it was probed, so that it is not drawn, by subject and message:
  // "all_reduce max", ...
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> not_drawn;
};

class FuzzListener {
 public:
  virtual ~FuzzListener() = default;
  virtual void on_failure(const FuzzFailure&) = 0;  // new, and shrunk
  virtual void on_progress(const FuzzTally&, std::size_t failures) = 0;
};

class Fuzzer {
 public:
  Fuzzer(FuzzOptions options, Interpreters& interpreters, FuzzListener& listener);
  ~Fuzzer();

  // Runs until count, seconds or an interrupt ends it. Throws UserError for a subject that cannot
  // be loaded, SystemError if nothing can be run.
  void run();

  const FuzzTally& tally() const { return tally_; }
  const std::map<FuzzKey, FuzzFailure>& failures() const { return failures_; }

 private:
  struct Item;
  class Outcomes;

  fuzz::Choices choices_for(const std::string& subject);
  std::vector<std::unique_ptr<Item>> draw_batch(std::size_t size);
  std::unique_ptr<Item> make_item(nlohmann::ordered_json document, const std::string& subject,
                                  std::uint64_t index) const;
  void verify_items(std::vector<std::unique_ptr<Item>>& items);
  void probe(std::size_t subject);
  void note(const Item& item);
  void shrink_failure(const Item& item, FuzzFailure& failure);
  void write_note(const Item& item, FuzzFailure& failure) const;
  bool is_over() const;

  FuzzOptions options_;
  Interpreters& interpreters_;
  FuzzListener& listener_;
  std::vector<fuzz::Choices> choices_;  // by subject
  std::unique_ptr<Verifier> verifier_;
  FuzzTally tally_;
  std::map<FuzzKey, FuzzFailure> failures_;
  std::uint64_t next_ = 0;
  double started_ = 0;
};

}  // namespace distgrad
