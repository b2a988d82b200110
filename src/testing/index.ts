// What `outlive/testing` gives to users: the conformance suites for stores and blob stores, the known bugs that it covers, a clock for their tests, and what was enqueued.

export { blobConformance, type ConformanceBlobs, type MakeBlobs } from "./blob-conformance.ts";
export {
  type ConformanceStores,
  type Damage,
  type MakeStores,
  type Restore,
  type SteeredClock,
  storeConformance,
  type UserWrites,
} from "./conformance/suite.ts";
export { type CrashReport, type CrashRun, crashTest, type CrashTestOptions } from "./crash-test/crash-test.ts";
export { effect } from "./crash-test/effects.ts";
export { assertEnqueued, enqueued, type InputMatch } from "./enqueued.ts";
export { type KnownBug, KNOWN_BUGS, type Showing } from "./known-bugs.ts";
export { type VirtualClock, virtualClock } from "./virtual-clock.ts";
export { type Answers, answers, type CannedAnswer, type SentRequest } from "./answers.ts";
