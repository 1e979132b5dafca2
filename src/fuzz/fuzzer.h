// The loop of `distgrad fuzz`: random programs are drawn, run and judged in batches; what fails is
// shrunk, and reported once for each finding, collective and op.
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
  std::optional<double> seconds;                    // then no more are drawn
  fuzz::Choices choices = fuzz::default_choices();  // but for what the subjects offer
  std::vector<CollectiveKind> kinds;                // only these; empty: all
  std::string python;     // the interpreter of subjects in Python; empty: the default one
  double timeout_s = 10;  // for one program
};

// What tells failures apart.
struct FuzzKey {
  std::string subject;
  std::string rule;        // a finding, or the kind of an error: "crash", "hang", ..., "invalid"
  std::string collective;  // empty where none is blamed
  std::string op;          // empty where the kind takes none
  auto operator<=>(const FuzzKey&) const = default;
};

struct FuzzFailure {
  FuzzKey key;
  std::uint64_t index = 0;  // of the first program that showed it
  long count = 1;           // of programs
  bool is_broken =
      false;         // not a wrong gradient: a crash, a hang, an exception, a program that is none
  std::string text;  // what it means, or the error's message
  nlohmann::ordered_json
      scenario;  // as small as it would get, with its note and what is expected of the subject
  std::size_t shrinks = 0;  // reductions that were kept
  bool is_minimal =
      true;               // false: what was tried ended before the scenario was as small as it gets
  bool is_probe = false;  // found by asking what the subject offers, before any program was drawn
};

struct FuzzTally {
  std::uint64_t drawn = 0;  // program indices that were finished
  long programs = 0;        // of all subjects
  long matches = 0, mismatches = 0, broken = 0, disputed = 0, skipped = 0;
  std::map<std::string, long> why_skipped;
  // What code raised at when it was asked what it offers, so that it is not drawn: by subject and
  // message "all_reduce max", ...
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

  // Until count, seconds or an interrupt ends it. Throws UserError for a subject that cannot be
  // loaded, SystemError where nothing can be run.
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
