// `outlive status`: one screen about everything, and what to do next. `--check` is for machines, `--watch` for people.
import { duration } from "../context.ts";
import { ExitCode } from "../exit-codes.ts";
import { watch } from "../live-view.ts";
import { knownWorker } from "../lookup.ts";
import type { Register } from "../main.ts";
import { look, type Look, type Status, statusOf } from "../survey.ts";
import { jsonText } from "../terminal.ts";
import { heartbeatLines, statusLines, workerLines } from "../views/status.ts";

interface Flags {
  readonly check?: boolean;
  readonly watch?: boolean;
  readonly maxAge: number;
}

export const statusCommand: Register = (program, run) => {
  program
    .command("status")
    .description("one screen: kinds, workers, incidents, the store's health, and what to do next")
    .option("--check", "exit with 1 if something needs a person")
    .option("--watch", "look again every second, until q or Ctrl-C")
    .option("--max-age <duration>", "how long the oldest ready job may wait", duration, 300_000)
    .addHelpText(
      "after",
      `
--check exits with 1 if: jobs are ready and no live worker knows their kind; a dead worker's jobs wait and no live worker can take
them; a job was quarantined within a day; the oldest ready job is older than --max-age (default 5m; paused kinds don't count); the
store is not ok or blocked.`,
    )
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<Flags>();
        const engine = await attach();
        let before: Look | null = null;
        let ok = true;
        const status = async (): Promise<Status> => {
          const now = await look(engine, Date.now);
          const made = statusOf(now, before, flags.maxAge);
          before = now;
          ok = made.ok;
          return made;
        };
        if (flags.watch === true)
          await watch(terminal, async ({ columns, rows }) => {
            const now = await status();
            return terminal.json ? [jsonText(now)] : statusLines(now, { ...terminal, columns }, rows);
          });
        else {
          const now = await status();
          terminal.answer(now, () => statusLines(now, terminal).join("\n"));
        }
        return flags.check === true && !ok ? ExitCode.failure : ExitCode.ok;
      }),
    );
};

// `outlive workers`: who works, and how they are.

/** Of each worker, so that the answer stays readable; `heldCount` says how many there are. */
const HELD_IDS = 100;

export const workersCommand: Register = (program, run) => {
  program
    .command("workers")
    .description("who works: process, state, what each holds")
    .option("--heartbeat", "their signs of life: heartbeats, leases, loop lag, held jobs, last words")
    .option("--all", "also those that are over and still kept")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ heartbeat?: boolean; all?: boolean }>();
        const engine = await attach();
        const which = flags.all ? "all" : "present";
        const ids = flags.heartbeat ? { heldIds: HELD_IDS } : {};
        const [rows, deaths] = await Promise.all([engine.workers({ which, ...ids }), engine.operator.deaths()]);
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

// `outlive metrics`: the metrics of the store once, as Prometheus text. What happened inside the worker processes is served by
// `outlive work --http`.

export const metricsCommand: Register = (program, run) => {
  program
    .command("metrics")
    .description("the store's metrics once, as Prometheus text")
    .action(
      run(async ({ terminal, attach }) => {
        // Loaded here: no other command needs it.
        const [{ promClient }, { attachMetrics }] = await Promise.all([
          import("../../telemetry/prom-client.ts"),
          import("../../metrics.ts"),
        ]);
        const registry = new (promClient().Registry)();
        attachMetrics(await attach(), { registry, only: "store", incidentsSince: 0 });
        const text = await registry.metrics();
        terminal.answer(terminal.json ? await registry.getMetricsAsJSON() : null, () => text);
      }),
    );
};
