// What `outlive/testing` gives to users: the conformance suite for stores, the museum that it shows, and a clock for their tests.
export { storeConformance } from "./conformance/suite.ts";
export type { ConformanceStores, Damage, MakeStores, Restore, SteeredClock, UserWrites } from "./conformance/stores.ts";
export { type Exhibit, MUSEUM, type Showing } from "./museum.ts";
export { type VirtualClock, virtualClock } from "./virtual-clock.ts";
export { type CrashReport, type CrashRun, crashTest, type CrashTestOptions } from "./crash-test/crash-test.ts";
export { effect } from "./crash-test/effects.ts";
