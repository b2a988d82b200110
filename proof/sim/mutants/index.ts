// All mutants. Each breaks one promise on purpose; the oracle must find every one of them, or it proves nothing.
import { answerMutants } from "./answers.ts";
import { attemptMutants } from "./attempts.ts";
import { batchMutants } from "./batches.ts";
import { commitMutants } from "./commits.ts";
import { contentMutants } from "./contents.ts";
import { endMutants } from "./ends.ts";
import { fenceMutants } from "./fences.ts";
import { followMutants } from "./follows.ts";
import { keyMutants } from "./keys.ts";
import { threadMutants } from "./maintenance-threads.ts";
import { lossMutants } from "./losses.ts";
import { maintenanceMutants } from "./maintenance.ts";
import type { Mutant } from "./mutant.ts";
import { queueMutants } from "./queue.ts";
import { recoveryMutants } from "./recovery.ts";
import { restoreMutants } from "./restores.ts";
import { suspectMutants } from "./suspects.ts";
import { waitMutants } from "./waits.ts";
import { workerMutants } from "./workers.ts";
import { writeMutants } from "./writes.ts";

export const MUTANTS: readonly Mutant[] = [
  ...fenceMutants,
  ...attemptMutants,
  ...answerMutants,
  ...endMutants,
  ...commitMutants,
  ...queueMutants,
  ...recoveryMutants,
  ...lossMutants,
  ...restoreMutants,
  ...suspectMutants,
  ...workerMutants,
  ...threadMutants,
  ...maintenanceMutants,
  ...writeMutants,
  ...followMutants,
  ...waitMutants,
  ...keyMutants,
  ...contentMutants,
  ...batchMutants,
];
