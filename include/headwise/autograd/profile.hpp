// Where the time and the FLOPs of a tape's steps go, function by function. A profile reads a clock
// and the tally; what an operation counts, it counts itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/runtime/context.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What calls of one kind cost.
struct OpCost {
  Index calls = 0;         // that came to their end
  double seconds = 0;      // of those that threw, too
  std::int64_t flops = 0;  // useful ones, as FlopTally counts them

  /// Adds another one's.
  OpCost& operator+=(const OpCost& other) {
    calls += other.calls;
    seconds += other.seconds;
    flops += other.flops;
    return *this;
  }
};

/// What one function of the tape cost.
struct OpProfile {
  std::string name;   // as messages have it: "linear", "attention"
  OpCost forward;     // values, recorded or under a NoGrad
  OpCost recomputed;  // values once more, for a checkpoint, while backward runs
  OpCost backward;    // gradients, and adding them to those that are there

  /// All three together.
  OpCost total() const {
    OpCost sum = forward;
    sum += recomputed;
    return sum += backward;
  }
};

class TapeProfile;

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// From start to finish, or to its end, time and FLOPs are those of one function; where another
/// starts meanwhile, that one's alone. Without a profile it is a null pointer.
class ProfileScope {
 public:
  ProfileScope() = default;
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;
  ~ProfileScope() {
    if (profile_ != nullptr) end();
  }
  /// Once; null for no profile. Throws std::bad_alloc.
  void start(TapeProfile* profile, const char* name, OpCost OpProfile::*part,
             const FlopTally* tally) {
    if (profile != nullptr) begin(*profile, name, part, tally);
  }
  /// The call came to its end.
  void finish() {
    if (profile_ != nullptr) count();
  }

 private:
  friend class headwise::TapeProfile;

  void begin(TapeProfile& profile, const char* name, OpCost OpProfile::*part,
             const FlopTally* tally);
  void count();
  void end();

  TapeProfile* profile_ = nullptr;
  std::size_t op_ = 0;
  OpCost OpProfile::*part_ = nullptr;
  const FlopTally* tally_ = nullptr;
  std::int64_t flops_ = 0;         // of the tally, when this was last at work
  ProfileScope* below_ = nullptr;  // what goes on behind it
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What a tape's steps cost, by function: calls, seconds and FLOPs of forward and backward apart.
///
///   TapeProfile profile;
///   Tape<float> tape(context, &profile);
///   ...                                              // steps
///   profile.of("linear").backward.seconds;
///
/// Forward of a call is from its checks until it is a node, backward is what its node does in the
/// sweep, the adding of gradients included. Each moment counts once: what a function calls of the
/// tape is not its own, so that a "checkpoint" costs nearly nothing, and what it runs stands under
/// its own names: under `recomputed` where backward runs it. Views, parameters and inputs do not
/// appear. Everything is added up over as many tapes and steps as there are, until reset().
///
/// FLOPs are differences of the tape's context's tally, or of one of the profile's own where the
/// context has none; nothing else may add to that meanwhile. A profile belongs to one thread at a
/// time, as tapes do, and has to outlive its tapes. It costs two readings of a clock a call: 6 us
/// of a step of 210 us and 90 calls.
class TapeProfile {
 public:
  /// Nothing has been called yet.
  TapeProfile() = default;
  TapeProfile(const TapeProfile&) = delete;
  TapeProfile& operator=(const TapeProfile&) = delete;

  /// The functions that were called, in the order of their first calls.
  const std::vector<OpProfile>& ops() const { return ops_; }

  /// The one of this name: zeros where it was never called.
  OpProfile of(std::string_view name) const {
    for (const OpProfile& op : ops_) {
      if (op.name == name) return op;
    }
    return {std::string(name), {}, {}, {}};
  }

  /// All of them together.
  OpProfile total() const {
    OpProfile sum{"total", {}, {}, {}};
    for (const OpProfile& op : ops_) {
      sum.forward += op.forward;
      sum.recomputed += op.recomputed;
      sum.backward += op.backward;
    }
    return sum;
  }

  /// Every count to 0. The names stay, so that the steps that follow take no memory for them.
  void reset() {
    for (OpProfile& op : ops_) op.forward = op.recomputed = op.backward = {};
  }

  /// A context that counts FLOPs: in the tally that it has, or else in one of the profile's.
  Context counting(Context context) {
    if (context.flops == nullptr) context.flops = &tally_;
    return context;
  }

 private:
  friend class detail::ProfileScope;
  using Clock = std::chrono::steady_clock;

  /// The place of a name. Throws std::bad_alloc.
  std::size_t place_of(std::string_view name) {
    for (std::size_t n = 0; n < ops_.size(); ++n) {
      if (ops_[n].name == name) return n;
    }
    ops_.push_back({std::string(name), {}, {}, {}});
    return ops_.size() - 1;
  }

  /// What has passed since the last change goes to whoever is at work. Another one is next, or who
  /// goes on has its FLOPs looked up anew.
  void settle() {
    const Clock::time_point now = Clock::now();
    if (at_work_ != nullptr) {
      detail::ProfileScope& scope = *at_work_;
      OpCost& cost = ops_[scope.op_].*scope.part_;
      cost.seconds += std::chrono::duration<double>(now - since_).count();
      cost.flops += useful(scope) - scope.flops_;
    }
    since_ = now;
  }
  static std::int64_t useful(const detail::ProfileScope& scope) {
    return scope.tally_ == nullptr ? 0 : scope.tally_->useful.load(std::memory_order_relaxed);
  }

  std::vector<OpProfile> ops_;
  FlopTally tally_;
  detail::ProfileScope* at_work_ = nullptr;  // the last that began
  Clock::time_point since_{};
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

inline void ProfileScope::begin(TapeProfile& profile, const char* name, OpCost OpProfile::*part,
                                const FlopTally* tally) {
  op_ = profile.place_of(name);
  profile_ = &profile;
  part_ = part;
  tally_ = tally;
  profile.settle();
  flops_ = TapeProfile::useful(*this);
  below_ = profile.at_work_;
  profile.at_work_ = this;
}

inline void ProfileScope::count() {
  ++(profile_->ops_[op_].*part_).calls;
  end();
  profile_ = nullptr;
}

inline void ProfileScope::end() {
  profile_->settle();
  ProfileScope** at = &profile_->at_work_;
  while (*at != this) at = &(*at)->below_;  // the first, but where calls are interleaved
  *at = below_;
  if (profile_->at_work_ != nullptr) {
    profile_->at_work_->flops_ = TapeProfile::useful(*profile_->at_work_);
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
