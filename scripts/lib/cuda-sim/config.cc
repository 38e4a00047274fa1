// CUDA_SIM: the simulated devices, the calls that fail or hang, and the trace.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "sim.h"

namespace sim {

namespace {

/// The call that a failure or hang applies to.
struct Trigger {
    std::string name;
    /// Counted from 1; 0 means every call.
    uint64_t number;
    uint64_t seen = 0;

    /// Counts a call of this name; returns whether it is the one.
    bool pulled(const std::string &called) { return called == name && (++seen == number || number == 0); }
};

struct Failure {
    Trigger at;
    Result code;
    bool lost;
};

struct Parsed {
    Config config;
    std::vector<Failure> failures;
    std::vector<Trigger> hangs;
    std::mutex lock;
};

[[noreturn]] void refuse(const std::string &item, const char *why) {
    fprintf(stderr, "CUDA_SIM: %s: %s\n", item.c_str(), why);
    abort();
}

Result code_of(const std::string &text) {
#define ERROR(name, value) \
    if (text == #name) return value;
#include "errors.inc"
#undef ERROR
    return atoi(text.c_str());
}

/// CALL:N, where N is a number from 1 or `*`.
Trigger trigger_of(const std::string &value) {
    size_t colon = value.find(':');
    std::string number = colon == std::string::npos ? "" : value.substr(colon + 1);
    Trigger at{value.substr(0, colon), number == "*" ? 0 : strtoull(number.c_str(), nullptr, 10)};
    if (at.name.empty() || (at.number == 0 && number != "*")) refuse(value, "want CALL:N, N from 1 or *");
    return at;
}

Failure failure_of(const std::string &value) {
    size_t last = value.rfind(':');
    if (last == std::string::npos) refuse(value, "want fail=CALL:N:CODE");
    Failure failure{};
    failure.at = trigger_of(value.substr(0, last));
    std::string code = value.substr(last + 1);
    failure.lost = code == "lost";
    failure.code = failure.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : code_of(code);
    if (failure.code == CUDA_SUCCESS) refuse(value, "the code is a number or a name such as CUDA_ERROR_OUT_OF_MEMORY, or lost");
    return failure;
}

void parse(Parsed &parsed, const std::string &item) {
    size_t equals = item.find('=');
    if (equals == std::string::npos) refuse(item, "want KEY=VALUE");
    std::string key = item.substr(0, equals), value = item.substr(equals + 1);
    Config &config = parsed.config;
    long number = atol(value.c_str());
    if (key == "devices") config.devices = int(number);
    else if (key == "delay_us") config.delay_us = unsigned(number);
    else if (key == "seed") config.seed = strtoull(value.c_str(), nullptr, 10);
    else if (key == "memory_mb") config.memory = size_t(number) << 20;
    else if (key == "cc") config.capability = int(number);
    else if (key == "compute_mode") config.compute_mode = int(number);
    else if (key == "driver") config.version = int(number);
    else if (key == "dmabuf") config.dmabuf = number != 0;
    else if (key == "protect") config.protect = number != 0;
    else if (key == "fail") parsed.failures.push_back(failure_of(value));
    else if (key == "hang") parsed.hangs.push_back(trigger_of(value));
    else if (key == "trace") {
        config.trace = fopen(value.c_str(), "ae");
        if (!config.trace) refuse(item, "cannot be opened");
        setvbuf(config.trace, nullptr, _IOLBF, 0);
    } else refuse(item, "unknown key; README.md of cuda-sim lists them");
}

Parsed &parsed() {
    static Parsed &it = *[] {
        auto *made = new Parsed;
        const char *text = getenv("CUDA_SIM");
        std::string rest = text ? text : "";
        while (!rest.empty()) {
            size_t comma = rest.find(',');
            std::string item = rest.substr(0, comma);
            rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
            if (!item.empty()) parse(*made, item);
        }
        return made;
    }();
    return it;
}

/// The name without its version: cuMemAlloc_v2 is cuMemAlloc.
std::string plain(const char *function) {
    std::string name = function;
    size_t at = name.rfind("_v");
    if (at != std::string::npos && at + 3 == name.size()) name.resize(at);
    return name;
}

}  // namespace

const Config &config() { return parsed().config; }

Result injected(const char *function) {
    Parsed &all = parsed();
    if (all.failures.empty()) return CUDA_SUCCESS;
    std::string name = plain(function);
    Result code = CUDA_SUCCESS;
    bool lost = false;
    {
        std::lock_guard<std::mutex> guard(all.lock);
        for (Failure &failure : all.failures) {
            if (!failure.at.pulled(name)) continue;
            code = failure.code;
            lost = failure.lost;
        }
    }
    if (lost) {
        Lock lock(state().lock);
        state().lost = code;
        state().progress.notify_all();
    }
    return code;
}

bool hangs(const char *function) {
    Parsed &all = parsed();
    if (all.hangs.empty()) return false;
    std::string name = plain(function);
    std::lock_guard<std::mutex> guard(all.lock);
    bool pulled = false;
    for (Trigger &hang : all.hangs) pulled |= hang.pulled(name);
    return pulled;
}

bool &call_hangs() {
    thread_local bool it = false;
    return it;
}

Result enter(const char *function, bool needs_init) {
    if (FILE *trace = config().trace) fprintf(trace, "%d %lx %s\n", getpid(), (unsigned long)pthread_self(), plain(function).c_str());
    // A hang for the call before, which had no use for it, is discarded.
    call_hangs() = hangs(function);
    if (Result code = injected(function)) return code;
    State &all = state();
    if (all.lost) return all.lost;
    // A forked child has neither the threads of the streams nor a driver.
    if (needs_init && (!all.initialised || all.pid != getpid())) return CUDA_ERROR_NOT_INITIALIZED;
    return CUDA_SUCCESS;
}

State &state() {
    static State &it = *new State;
    return it;
}

}  // namespace sim
