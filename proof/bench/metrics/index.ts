// All metrics of each store, in the order in which they are run and printed.
import type { Metric } from "../harness.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { beatHolding } from "./beat-holding.ts";
import { drainDeepPostgres, drainDeepRedis, drainDeepSqlite } from "./drain-deep.ts";
import {
  drainBesideSleepers,
  drainKeyed,
  drainManyKinds,
  drainOneOfManyKinds,
  parentChildren,
} from "./drain-features.ts";
import { drainLong, drainPinned } from "./drain-long.ts";
import { drainPurging } from "./drain-purging.ts";
import { drainSlowHandlers } from "./drain-slow-handlers.ts";
import { drainFourProcesses } from "./drain-four-processes.ts";
import { counts } from "./counts.ts";
import { drain } from "./drain.ts";
import { enqueueBulk, enqueueDuplicates } from "./enqueue-bulk.ts";
import { enqueueInFlight } from "./enqueue-in-flight.ts";
import { enqueueInFlightPeers } from "./enqueue-in-flight-peers.ts";
import { enqueue } from "./enqueue.ts";
import { firstJob } from "./first-job.ts";
import { heartbeats } from "./heartbeats.ts";
import { idleCpu } from "./idle-cpu.ts";
import { idleFleet } from "./idle-fleet.ts";
import { killToRerun, killToRerunElsewhere } from "./kill-to-rerun.ts";
import { lookOver } from "./look-over.ts";
import { openUnclean } from "./open-unclean.ts";
import { pickupOther } from "./pickup-other.ts";
import { pickupSame } from "./pickup-same.ts";
import { recoverOrphans } from "./recover-orphans.ts";
import { lossyFailover } from "./redis-failover.ts";
import { slowScripts } from "./redis-scripts.ts";
import { drainAlways, idleCommands, jobMemory, largeReads } from "./redis-store.ts";
import { schedulesDue } from "./schedules-due.ts";
import { workerMemory } from "./worker-memory.ts";

export const metrics: Readonly<Record<StoreName, readonly Metric[]>> = {
  sqlite: [
    drain,
    drainFourProcesses,
    drainDeepSqlite,
    drainKeyed,
    parentChildren,
    drainBesideSleepers,
    drainManyKinds,
    drainOneOfManyKinds,
    drainSlowHandlers,
    drainLong,
    drainPurging,
    enqueue,
    enqueueInFlight,
    enqueueBulk,
    killToRerun,
    recoverOrphans,
    openUnclean,
    lookOver,
    beatHolding,
    idleCpu,
    workerMemory,
    firstJob,
    pickupSame,
    pickupOther,
    schedulesDue,
  ],
  postgres: [
    drain,
    drainDeepPostgres,
    drainKeyed,
    parentChildren,
    drainBesideSleepers,
    drainManyKinds,
    drainOneOfManyKinds,
    drainSlowHandlers,
    drainLong,
    drainPurging,
    drainPinned,
    enqueue,
    enqueueInFlightPeers,
    enqueueBulk,
    enqueueDuplicates,
    killToRerun,
    counts,
    heartbeats,
    idleFleet,
    beatHolding,
    idleCpu,
    workerMemory,
    firstJob,
    pickupSame,
    pickupOther,
    schedulesDue,
  ],
  redis: [
    drain,
    drainAlways,
    drainDeepRedis,
    drainKeyed,
    drainManyKinds,
    drainOneOfManyKinds,
    enqueue,
    enqueueInFlightPeers,
    enqueueBulk,
    jobMemory,
    largeReads,
    slowScripts,
    killToRerun,
    killToRerunElsewhere,
    lossyFailover,
    idleCpu,
    idleCommands,
    workerMemory,
    firstJob,
    pickupSame,
    pickupOther,
    schedulesDue,
  ],
};
