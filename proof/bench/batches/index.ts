// The metrics of `--batches`, in the order in which they are run and printed.
import type { Metric } from "../harness.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { batchEnd, batchEndKilled } from "./ends.ts";
import { batchAbort, batchOutput } from "./million.ts";
import { plainJobs } from "./plain-jobs.ts";
import { batchProcesses } from "./processes.ts";
import { batchRows, batchSubmit } from "./rates.ts";

const each = [batchRows, batchSubmit, batchEnd, batchEndKilled, batchOutput, batchAbort];

export const batchMetrics: Readonly<Record<StoreName, readonly Metric[]>> = {
  sqlite: [...each, plainJobs],
  postgres: [...each.slice(0, 2), batchProcesses, ...each.slice(2), plainJobs],
  // Without `plainJobs`: the last commit without batches had no store for Redis.
  redis: each,
};
