// `outlive work`: runs worker processes under a supervisor. Always under one, also a single process: only a process that stays alive
// sees how it died, and recovers its jobs at once.
import { InvalidArgumentError, Option } from "commander";
import type { LoadedConfig } from "../../engine/config.ts";
import type { Engine } from "../../engine/engine.ts";
import { open } from "../../engine/open.ts";
import { accepts, fromText, listenAddress, takes } from "../../engine/option-checks.ts";
import { engineSettings } from "../../engine/options.ts";
import { defaultOf, SETTINGS } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { EngineEvent } from "../../job/events.ts";
import { type Duration, durationMs } from "../../job/time.ts";
import { jsonWriter, type Logger, prettyWriter } from "../../log.ts";
import { VERSION } from "../../platform/identity.ts";
import type { LivenessTimes } from "../../stores/liveness.ts";
import { shownAddress, storeAt } from "../../stores/registry.ts";
import type { Register } from "../main.ts";
import type { LogForm, WorkOrder } from "../supervisor/child.ts";
import { serve } from "../supervisor/http.ts";
import { loadMiddleware } from "../supervisor/job-modules.ts";
import { becomeInit, Supervisor } from "../supervisor/supervisor.ts";
import { count } from "../words.ts";

interface WorkFlags {
  readonly processes?: number;
  readonly concurrency?: number | Readonly<Record<string, number>>;
  readonly only?: readonly string[];
  readonly watch?: true;
  readonly import: readonly string[];
  readonly middleware: readonly string[];
  readonly http?: string;
  readonly grace?: Duration;
  readonly log?: LogForm;
  readonly json?: boolean;
}

/** Modules that change are being worked on: a restart does not wait for a long job then. */
const WATCH_GRACE: Duration = "2s";

export const workCommand: Register = (program, run) => {
  program
    .command("work")
    .argument("[globs...]", "modules that export jobs with handlers (default: `jobs` of the configuration)")
    .description("run worker processes, restart those that die, and recover their jobs at once")
    .option(
      "--processes <n>",
      `how many worker processes (default: ${defaultOf("work.processes")})`,
      setting("work.processes"),
    )
    .option(
      "--concurrency <n>",
      `jobs at once in each process: 50, or per kind: mail=5,render=2 (default: ${SETTINGS["work.concurrency"].default})`,
      setting("work.concurrency"),
    )
    .option("--only <kinds>", "only these kinds: mail,render", list)
    .option("--watch", "restart the workers when a module changes; counts no crash")
    .addOption(
      new Option("--import <module>", "loaded first in each process, as by node --import; may be repeated")
        .argParser(collect)
        .default([], "none"),
    )
    .addOption(
      new Option(
        "--middleware <module>",
        "a module whose default export wraps every attempt; may be repeated, the first is the outermost",
      )
        .argParser(collect)
        .default([], "none"),
    )
    .option(
      "--http <host:port>",
      "serve /live, /ready and /metrics, for example on 127.0.0.1:9090 (default: off)",
      setting("work.http"),
    )
    .option(
      "--grace <duration>",
      `how long a stopping worker waits for its jobs (default: ${defaultOf("work.grace")})`,
      setting("work.grace"),
    )
    .option("--log <form>", `pretty or json (default: ${defaultOf("work.log")}, json with --json)`, setting("work.log"))
    .action(
      run(async ({ config, mayChange }, command) => {
        mayChange("work");
        becomeInit();
        return work(await config(), command.args, command.optsWithGlobals<WorkFlags>());
      }),
    );
};

async function work(config: LoadedConfig, globs: readonly string[], flags: WorkFlags): Promise<number> {
  const form = flags.log ?? (flags.json ? "json" : (config.work.log ?? defaultOf("work.log")));
  const processes = flags.processes ?? config.work.processes ?? defaultOf("work.processes");
  const http = flags.http ?? config.work.http ?? defaultOf("work.http");
  const address = listenAddress(http);
  const colours = form === "pretty" && (process.stderr.hasColors?.() ?? false);
  const log = form === "json" ? jsonWriter() : prettyWriter({ colours });
  const unmeasured = address && (await whyUnmeasured());
  const order: Omit<WorkOrder, "place" | "share"> = {
    store: shared(config.store),
    ...sendable(config),
    globs: { base: process.cwd(), patterns: globs.length > 0 ? globs : config.jobs },
    middleware: { base: process.cwd(), patterns: middlewareOf(config, flags) },
    only: flags.only ?? null,
    concurrency: flags.concurrency ?? config.work.concurrency ?? null,
    graceMs: durationMs(flags.grace ?? config.work.grace ?? defaultOf("work.grace"), "--grace"),
    log: form,
    colours,
    metrics: address !== null && unmeasured === null,
    watch: flags.watch === true,
  };
  const { times } = engineSettings(config.engine, storeAt(config.store).name);
  // The supervisor recovers the jobs of its dead workers, and a middleware may want to hear of it.
  const middleware = await loadMiddleware(order.middleware);
  greet(log, config, { processes, order, times });
  const early: EngineEvent[] = [];
  let opening = true;
  const onEvent = (event: EngineEvent): void => void (opening && early.push(event));
  const engine = await open(config.store, { ...config.engine, middleware, logger: log, onEvent });
  opening = false;
  try {
    const { FleetMetrics } = order.metrics ? await import("../supervisor/http.ts") : { FleetMetrics: null };
    const metrics = FleetMetrics && new FleetMetrics(engine, early);
    const supervisor = new Supervisor(engine, log, {
      processes,
      order,
      execArgv: execArgv(flags["import"], config.work.semiSpace ?? defaultOf("work.semiSpace")),
      times,
      watchGraceMs: durationMs(flags.grace ?? WATCH_GRACE, "--grace"),
      metrics,
      stderr: (lines) => void process.stderr.write(lines),
    });
    const server =
      address &&
      (await serve(address, {
        unready: () => supervisor.unready(),
        metrics: () => (metrics ? metrics.text(supervisor.children) : Promise.reject(unmeasured!)),
      }));
    if (server) greetServer(log, server);
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

function middlewareOf({ work: { middleware = [] } }: LoadedConfig, flags: WorkFlags): readonly string[] {
  if (flags.middleware.length > 0) return flags.middleware;
  return typeof middleware === "string" ? [middleware] : middleware;
}

/** Probes need no package, metrics need prom-client: without it, what to install. */
async function whyUnmeasured(): Promise<OutliveError | null> {
  const { promClient } = await import("../../telemetry/metrics.ts");
  try {
    promClient();
    return null;
  } catch (thrown) {
    if (thrown instanceof OutliveError && thrown.code === ErrorCode.driverMissing) return thrown;
    throw thrown;
  }
}

/** The first line of the log. It names the store and where its address came from: web processes must use the same one. */
function greet(
  log: Logger,
  config: LoadedConfig,
  {
    processes,
    order,
    times,
  }: {
    readonly processes: number;
    readonly order: Omit<WorkOrder, "place" | "share">;
    readonly times: LivenessTimes;
  },
): void {
  const store = shownAddress(config.store);
  const { source } = config.values.find(({ key }) => key === "store")!;
  const from = source === "default" ? "the default" : `from ${source}`;
  const what = `starts ${count(processes, "worker")} for ${order.globs.patterns.join(" ")}`;
  log.info(`outlive ${VERSION}: supervisor (pid ${process.pid}) ${what} on ${store} (${from})`, {
    version: VERSION,
    store,
    storeFrom: source,
    pid: process.pid,
    processes,
    leaseMs: times.leaseMs,
  });
}

function greetServer(log: Logger, server: { readonly address: string; readonly isLoopback: boolean }): void {
  const reach = server.isLoopback ? "" : "; other machines can reach it";
  log.info(`http://${server.address} serves /live, /ready and /metrics${reach}`, { http: server.address });
}

/** What Node itself was started with, but never twice the same debugger port. */
function execArgv(imports: readonly string[], semiSpaceMb: number): string[] {
  const own = process.execArgv.filter((argument) => !/^--(inspect|watch)/.test(argument));
  const quiet = "--disable-warning=ExperimentalWarning";
  const isSized = [...own, process.env["NODE_OPTIONS"] ?? ""].some((text) =>
    /--max[-_]semi[-_]space[-_]size/.test(text),
  );
  return [
    ...own,
    ...(own.includes(quiet) ? [] : [quiet]),
    ...(isSized ? [] : [`--max-semi-space-size=${semiSpaceMb}`]),
    ...imports.flatMap((module) => ["--import", module]),
  ];
}

/** What can be sent to a worker process. A blob store or a broker that the configuration file made is made there again. */
function sendable({ engine: { blobs, broker, ...engine }, file }: LoadedConfig): Pick<WorkOrder, "engine" | "madeBy"> {
  const texts = {
    ...(typeof blobs === "string" && { blobs }),
    ...(typeof broker === "string" && { broker }),
  };
  return {
    engine: { ...engine, ...texts },
    madeBy: typeof blobs === "object" || typeof broker === "object" ? file : null,
  };
}

/** A store that another process blocks must not keep this one from ending. */
async function closeSoon(engine: Engine): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, 2_000)));
  await Promise.race([engine.close(), late]);
  clearTimeout(timer);
}

function shared(store: string): string {
  if (!storeAt(store).isPrivate(store)) return store;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `Worker processes can't share ${store}.`,
    "Name a file: --store sqlite:./jobs.db",
    { store },
  );
}

/** The text of a flag as the value of the setting that it stands for. */
function setting(key: `work.${string}` & keyof typeof SETTINGS): (text: string) => unknown {
  return (text) => {
    const value = fromText(SETTINGS[key], text);
    if (!accepts(SETTINGS[key], value)) throw new InvalidArgumentError(`Use ${takes(SETTINGS[key])}.`);
    return value;
  };
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
