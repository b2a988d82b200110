// The metrics of `--batches`, in the order in which they are run and printed.
import type { Metric } from "../harness.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { batchEnd, batchEndKilled } from "./ends.ts";
import { batchAbort, batchOutput } from "./million.ts";
import { plainJobs } from "./plain-jobs.ts";
import { batchProcesses, batchRows, batchSubmit } from "./rates.ts";

const both = [batchRows, batchSubmit, batchEnd, batchEndKilled, batchOutput, batchAbort, plainJobs];

export const batchMetrics: Readonly<Record<StoreName, readonly Metric[]>> = {
  sqlite: both,
  postgres: [...both.slice(0, 2), batchProcesses, ...both.slice(2)],
  // It has no batches.
  redis: [],
};
