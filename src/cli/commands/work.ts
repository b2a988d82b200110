// `outlive work`: runs worker processes under a supervisor. Always under one, also a single process: only somebody who stays alive
// sees how it died, and recovers its jobs at once.
import { InvalidArgumentError } from "commander";
import { storeNameOf } from "../../backends.ts";
import { DEFAULT_GRACE, engineSettings } from "../../config.ts";
import type { LoadedConfig } from "../../config-file.ts";
import { concurrencyOf } from "../../config-work.ts";
import { type Duration, durationMs } from "../../core/duration.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { EngineEvent } from "../../core/events.ts";
import type { LivenessTimes } from "../../core/liveness.ts";
import type { Engine } from "../../engine.ts";
import { jsonWriter, type Logger, prettyWriter } from "../../log.ts";
import { open } from "../../open.ts";
import type { Register } from "../main.ts";
import { parseAddress, serve } from "../supervisor/http.ts";
import { becomeInit } from "../supervisor/init.ts";
import type { LogForm, WorkOrder } from "../supervisor/messages.ts";
import { Supervisor } from "../supervisor/supervisor.ts";

interface WorkFlags {
  readonly processes?: number;
  readonly concurrency?: number | Readonly<Record<string, number>>;
  readonly only?: readonly string[];
  readonly watch?: true;
  readonly import: readonly string[];
  readonly http?: string;
  readonly grace?: string;
  readonly log?: LogForm;
  readonly json?: boolean;
}

/** Modules that change are being worked on: nobody wants to wait for a long job then. */
const WATCH_GRACE: Duration = "2s";

export const register: Register = (program, run) => {
  program
    .command("work")
    .argument("[globs...]", "modules that export jobs with handlers (default: `jobs` of the configuration)")
    .description("run worker processes, restart those that die, and recover their jobs at once")
    .option("--processes <n>", "how many worker processes (default: 1)", wholeNumber)
    .option("--concurrency <n>", "jobs at once in each process: 50, or per kind: mail=5,render=2", concurrency)
    .option("--only <kinds>", "only these kinds: mail,render", list)
    .option("--watch", "start again when a module changes; costs no job a crash")
    .option("--import <module>", "loaded first in each process, as by node --import; may be repeated", collect, [])
    .option("--http <host:port>", "serve /live, /ready and /metrics, for example on 127.0.0.1:9090 (default: off)")
    .option("--grace <duration>", `how long running jobs may finish at the end (default: ${DEFAULT_GRACE})`)
    .option("--log <form>", "pretty or json (default: pretty, json with --json)", logForm)
    .action(
      run(async ({ config, mayChange }, command) => {
        mayChange("work");
        becomeInit();
        return work(await config(), command.args, command.optsWithGlobals<WorkFlags>());
      }),
    );
};

async function work(config: LoadedConfig, globs: readonly string[], flags: WorkFlags): Promise<number> {
  const form = flags.log ?? (flags.json ? "json" : (config.work.log ?? "pretty"));
  const processes = flags.processes ?? config.work.processes ?? 1;
  const http = flags.http ?? config.work.http ?? "off";
  const address = http === "off" ? null : parseAddress(http);
  const colours = form === "pretty" && (process.stderr.hasColors?.() ?? false);
  const log = form === "json" ? jsonWriter() : prettyWriter({ colours });
  const unmeasured = address && (await whyUnmeasured());
  const order: Omit<WorkOrder, "place"> = {
    store: shared(config.store),
    engine: config.engine,
    globs: { base: process.cwd(), patterns: globs.length > 0 ? globs : config.jobs },
    only: flags.only ?? null,
    concurrency: flags.concurrency ?? config.work.concurrency ?? null,
    graceMs: durationMs((flags.grace ?? config.work.grace ?? DEFAULT_GRACE) as Duration, "--grace"),
    log: form,
    colours,
    metrics: address !== null && unmeasured === null,
    watch: flags.watch === true,
  };
  const { times } = engineSettings(config.engine, storeNameOf(config.store));
  const early: EngineEvent[] = [];
  let opening = true;
  const onEvent = (event: EngineEvent): void => void (opening && early.push(event));
  const engine = await open(config.store, { ...config.engine, logger: log, onEvent });
  opening = false;
  try {
    const { FleetMetrics } = order.metrics ? await import("../supervisor/fleet-metrics.ts") : { FleetMetrics: null };
    const metrics = FleetMetrics && new FleetMetrics(engine, early);
    const supervisor = new Supervisor(engine, log, {
      processes,
      order,
      execArgv: execArgv(flags["import"]),
      times,
      watchGraceMs: durationMs((flags.grace ?? WATCH_GRACE) as Duration, "--grace"),
      metrics,
      stderr: (lines) => void process.stderr.write(lines),
    });
    const server =
      address &&
      (await serve(address, {
        unready: () => supervisor.unready(),
        metrics: () => (metrics ? metrics.text(supervisor.children) : Promise.reject(unmeasured!)),
      }));
    greet(log, processes, order, times, server);
    if (unmeasured) log.warn(`/metrics fails: ${unmeasured.message}`, { code: unmeasured.code });
    try {
      return await supervisor.run();
    } finally {
      await server?.close();
    }
  } finally {
    await closeSoon(engine);
  }
}

/** Probes need no package, metrics need prom-client: without it, what to install. */
async function whyUnmeasured(): Promise<OutliveError | null> {
  const { promClient } = await import("../../prom-client.ts");
  try {
    promClient();
    return null;
  } catch (thrown) {
    if (thrown instanceof OutliveError && thrown.code === ErrorCode.driverMissing) return thrown;
    throw thrown;
  }
}

function greet(
  log: Logger,
  processes: number,
  { globs }: Omit<WorkOrder, "place">,
  { leaseMs }: LivenessTimes,
  server: { readonly address: string; readonly isLoopback: boolean } | null,
): void {
  log.info(`supervisor (pid ${process.pid}) starts ${processes} worker(s) of ${globs.patterns.join(" ")}`, {
    pid: process.pid,
    processes,
    leaseMs,
    http: server?.address ?? null,
  });
  if (!server) return;
  const reach = server.isLoopback ? "" : "; other machines can reach it";
  log.info(`http://${server.address} answers /live, /ready and /metrics${reach}`, { http: server.address });
}

/** What Node itself was started with, but never twice the same debugger port. */
function execArgv(imports: readonly string[]): string[] {
  const own = process.execArgv.filter((argument) => !/^--(inspect|watch)/.test(argument));
  const quiet = "--disable-warning=ExperimentalWarning";
  return [...own, ...(own.includes(quiet) ? [] : [quiet]), ...imports.flatMap((module) => ["--import", module])];
}

/** A store that is blocked by somebody else must not keep us from ending. */
async function closeSoon(engine: Engine): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, 2_000)));
  await Promise.race([engine.close(), late]);
  clearTimeout(timer);
}

function shared(store: string): string {
  if (store !== "sqlite::memory:") return store;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    "Worker processes can't share sqlite::memory:.",
    "Name a file: --store sqlite:./jobs.db",
    { store },
  );
}

function wholeNumber(text: string): number {
  const n = Number(text);
  if (!Number.isInteger(n) || n < 1 || n > 256) throw new InvalidArgumentError("Use a whole number from 1 to 256.");
  return n;
}

function concurrency(text: string): number | Readonly<Record<string, number>> {
  const said = concurrencyOf(text);
  if (said === null) throw new InvalidArgumentError("Use a number, or kind=number pairs: mail=5,render=2.");
  return said;
}

function list(text: string): string[] {
  return text
    .split(",")
    .map((name) => name.trim())
    .filter((name) => name !== "");
}

function collect(module: string, before: readonly string[]): string[] {
  return [...before, module];
}

function logForm(text: string): LogForm {
  if (text === "json" || text === "pretty") return text;
  throw new InvalidArgumentError("Use pretty or json.");
}
