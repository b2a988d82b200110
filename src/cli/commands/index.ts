// The list of commands, in the order in which the help shows them.
import type { Register } from "../main.ts";
import { backupCommand, checkCommand } from "./check.ts";
import { completionCommand } from "./completion.ts";
import { demoCommand, tortureCommand } from "./demo.ts";
import { enqueueCommand } from "./enqueue.ts";
import { incidentsCommand, recoveryCommand } from "./incidents.ts";
import { initCommand } from "./init.ts";
import { jobCommand, jobsCommand, whyCommand } from "./jobs.ts";
import { migrateCommand } from "./migrate.ts";
import { pauseCommand, quarantineCommand, retryCommand } from "./operate.ts";
import { recoverCommand } from "./recover.ts";
import { metricsCommand, statusCommand, workersCommand } from "./status.ts";
import { workCommand } from "./work.ts";

export const COMMANDS: readonly Register[] = [
  initCommand,
  workCommand,
  statusCommand,
  enqueueCommand,
  jobsCommand,
  jobCommand,
  whyCommand,
  retryCommand,
  quarantineCommand,
  pauseCommand,
  workersCommand,
  recoverCommand,
  incidentsCommand,
  recoveryCommand,
  checkCommand,
  backupCommand,
  migrateCommand,
  metricsCommand,
  demoCommand,
  tortureCommand,
  completionCommand,
];
