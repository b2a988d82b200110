// `outlive workers`: who works, and how they are.
import { knownWorker } from "../known-worker.ts";
import type { Register } from "../main.ts";
import { heartbeatLines, workerLines } from "../views/workers.ts";

export const register: Register = (program, run) => {
  program
    .command("workers")
    .description("who works: process, state, what each holds")
    .option("--heartbeat", "their signs of life: heartbeats, leases, loop lag, last words")
    .option("--all", "also those that are over and still kept")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ heartbeat?: boolean; all?: boolean }>();
        const engine = await attach();
        const which = flags.all ? "all" : "present";
        const [rows, deaths] = await Promise.all([engine.workers({ which }), engine.deaths()]);
        const now = Date.now();
        const workers = rows.map((row) => knownWorker(row, deaths, now));
        terminal.answer({ workers }, () => {
          if (workers.length === 0) return "No worker is alive. Start one: outlive work";
          const lines = flags.heartbeat ? heartbeatLines(workers, terminal) : workerLines(workers, terminal, now);
          return lines.join("\n");
        });
      }),
    );
};
