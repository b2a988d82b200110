// The list of commands, in the order in which the help shows them.
import type { Register } from "../main.ts";
import { register as backup } from "./backup.ts";
import { register as check } from "./check.ts";
import { register as completion } from "./completion.ts";
import { register as demo } from "./demo.ts";
import { register as enqueue } from "./enqueue.ts";
import { register as incidents } from "./incidents.ts";
import { register as init } from "./init.ts";
import { register as job } from "./job.ts";
import { register as jobs } from "./jobs.ts";
import { register as metrics } from "./metrics.ts";
import { register as migrate } from "./migrate.ts";
import { register as pause } from "./pause.ts";
import { register as quarantine } from "./quarantine.ts";
import { register as recover } from "./recover.ts";
import { register as recovery } from "./recovery.ts";
import { register as retry } from "./retry.ts";
import { register as status } from "./status.ts";
import { register as torture } from "./torture.ts";
import { register as why } from "./why.ts";
import { register as work } from "./work.ts";
import { register as workers } from "./workers.ts";

export const COMMANDS: readonly Register[] = [
  init,
  work,
  status,
  enqueue,
  jobs,
  job,
  why,
  retry,
  quarantine,
  pause,
  workers,
  recover,
  incidents,
  recovery,
  check,
  backup,
  migrate,
  metrics,
  demo,
  torture,
  completion,
];
