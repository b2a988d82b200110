// What `outlive/testing` gives to users: crash tests of their own jobs, what was enqueued, a clock for their tests, canned responses, and the
// conformance suite for blob stores. That for stores (conformance/) is not published: a program can't pass a store of its own to `open`, and the
// suite was an eighth of the tarball.

export { blobConformance, type ConformanceBlobs, type MakeBlobs } from "./blob-conformance.ts";
export { type CrashReport, type CrashRun, crashTest, type CrashTestOptions } from "./crash-test/crash-test.ts";
export { effect } from "./crash-test/effects.ts";
export { assertEnqueued, enqueued, type InputMatch } from "./enqueued.ts";
export { type VirtualClock, virtualClock } from "./virtual-clock.ts";
export { type Answers, answers, type CannedAnswer, type SentRequest } from "./answers.ts";
