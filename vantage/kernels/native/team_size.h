// How many threads are worth having while other processes want the cores as well.
//
// A thread that another process holds up keeps the others waiting at the end of a stage, and one that shares its core with
// the thread it waits for takes that one's time. Where the calling thread does not run for a good part of the time, one
// thread fewer is faster; once it runs all the time again, more are tried. They are tried again soon, since most of what
// comes between is short (a server's other threads, a client), and ever later where that fails. Results do not depend on
// it: whoever works takes the same pieces. It costs two looks at the clock for each program or step.
#pragma once
#include <time.h>
#include <algorithm>
#include <climits>
#include <cstdint>
#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#include <cstdio>
#endif

namespace vantage {

class TeamSize {
  public:
    explicit TeamSize(int wanted = 0) : wanted_(wanted), size_(wanted) {}

    // Of so many that are wanted, at this time. All times are nanoseconds. ``idle``: how many cores nobody wants.
    template <class Idle>
    int choose(int wanted, int64_t now, Idle&& idle) {
        if (wanted != wanted_) *this = TeamSize(wanted);
        if (size_ == wanted || trying_ || now < look_again_) return size_;
        const int cores = now < try_anyway_ ? idle() : INT_MAX;  // in a container it is the whole machine that is counted
        if (cores < 1) {
            look_again_ = now + HOLD;
            return size_;
        }
        before_ = size_, size_ += std::min(cores, (wanted - size_ + 1) / 2);
        trying_ = true, elapsed_ = lost_ = 0;
        return size_;
    }

    // The team has run. ``lost``: for how long the calling thread did not.
    void ran(int64_t now, int64_t elapsed, int64_t lost) {
        elapsed_ += elapsed, lost_ += lost;
        const bool crowded = lost_ * 100 > std::max(elapsed_, WINDOW) * CROWDED_PERCENT;
        if (!crowded && elapsed_ < WINDOW) return;  // a single wait says little
        if (crowded && size_ > 1) {
            hold_ = trying_ ? std::min(2 * hold_, LONGEST_HOLD) : HOLD;
            size_ = trying_ ? before_ : size_ - 1;
            look_again_ = now + hold_;
        } else if (crowded) {
            look_again_ = std::max(look_again_, now + HOLD);  // alone, and still others have the core
        } else if (trying_) {
            hold_ = HOLD, look_again_ = now;
        }
        if (crowded || trying_) try_anyway_ = now + LONGEST_HOLD;
        trying_ = false, elapsed_ = lost_ = 0;
    }

    int size() const { return size_; }

  private:
    static constexpr int64_t MS = 1000000, WINDOW = 30 * MS, HOLD = 25 * MS, LONGEST_HOLD = 1600 * MS;
    static constexpr int64_t CROWDED_PERCENT = 15;
    int wanted_, size_, before_ = 0;
    bool trying_ = false;  // more threads than before
    int64_t look_again_ = 0, try_anyway_ = 0, hold_ = HOLD, elapsed_ = 0, lost_ = 0;
};

// How many of the machine's cores have nothing to run; INT_MAX where the system does not say. 10 microseconds.
inline int idle_cores() {
#if defined(__linux__)
    const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (file < 0) return INT_MAX;
    char text[64] = {};
    const bool got = read(file, text, sizeof text - 1) > 0;
    close(file);
    int running;  // this thread as well
    if (got && sscanf(text, "%*s %*s %*s %d/", &running) == 1) return (int)sysconf(_SC_NPROCESSORS_ONLN) - running;
#endif
    return INT_MAX;
}

class RunClock {  // of the calling thread
  public:
    RunClock() : start_(clock(CLOCK_MONOTONIC)), ran_(clock(CLOCK_THREAD_CPUTIME_ID)) {}
    int64_t start() const { return start_; }
    // Its own work is done, and it begins to wait for the others to leave. That may be a spin, which is no work.
    void done() { ran_ = clock(CLOCK_THREAD_CPUTIME_ID) - ran_; }
    // In the midst of it: what has been since the start or the last time, and from here on again.
    void tell_so_far(TeamSize& team) {
        const int64_t now = clock(CLOCK_MONOTONIC), ran = clock(CLOCK_THREAD_CPUTIME_ID);
        team.ran(now, now - start_, now - start_ - (ran - ran_));
        start_ = now, ran_ = ran;
    }
    void tell(TeamSize& team) const {
        const int64_t now = clock(CLOCK_MONOTONIC);
        team.ran(now, now - start_, now - start_ - ran_);
    }

  private:
    static int64_t clock(clockid_t which) {
        timespec now;
        clock_gettime(which, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    int64_t start_, ran_;
};

}  // namespace vantage
