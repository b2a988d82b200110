// The supervisor's small read-only server for probes and scrapes: /live, /ready and /metrics. It listens on the
// loopback address unless another one is configured.
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import type { Engine } from "../../engine/engine.ts";
import type { ListenAddress } from "../../engine/option-checks.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { EngineEvent } from "../../job/events.ts";
import { aggregatedText, attachMetrics, lasting, type MetricsSnapshot } from "../../metrics.ts";
import { promClient } from "../../telemetry/metrics.ts";
import type { Child } from "./child.ts";

export interface Endpoints {
  /** Why it is not ready; null: it is. */
  readonly unready: () => string | null;
  readonly metrics: () => Promise<string>;
}

export interface Server {
  /** The actual listening address: a port of 0 has been resolved. */
  readonly address: string;
  readonly isLoopback: boolean;
  close(): Promise<void>;
}

export async function serve({ host, port }: ListenAddress, endpoints: Endpoints): Promise<Server> {
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, handler(endpoints));
  await new Promise<void>((resolve, reject) => {
    server.once("error", (thrown) =>
      reject(
        new OutliveError(
          ErrorCode.optionInvalid,
          `Nothing can listen on ${host}:${port}: ${thrown.message}.`,
          "Choose another --http, or omit it.",
          { host, port },
          { cause: thrown },
        ),
      ),
    );
    server.listen(port, host, resolve);
  });
  const { address, family, port: bound } = server.address() as AddressInfo;
  return {
    address: family === "IPv6" ? `[${address}]:${bound}` : `${address}:${bound}`,
    isLoopback: address === "::1" || address.startsWith("127."),
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function handler({ unready, metrics }: Endpoints): RequestListener {
  const paths: Record<string, () => Promise<[status: number, type: string, body: string]>> = {
    "/live": async () => [200, "text/plain; charset=utf-8", "live\n"],
    "/ready": async () => {
      const why = unready();
      return [why === null ? 200 : 503, "text/plain; charset=utf-8", why === null ? "ready\n" : `not ready: ${why}\n`];
    },
    "/metrics": async () => [200, "text/plain; version=0.0.4; charset=utf-8", await metrics()],
  };
  return (request, response) => {
    const path = (request.url ?? "").split("?", 1)[0]!;
    const answer = Object.hasOwn(paths, path) ? paths[path] : undefined;
    const send = (status: number, type: string, body: string, headers = {}): void => {
      response.writeHead(status, { "content-type": type, "cache-control": "no-store", ...headers }).end(body);
    };
    if (!answer) return send(404, "text/plain", "not found: there are /live, /ready and /metrics\n");
    // Node omits the body of a response to HEAD, so collecting metrics for it would be wasted work.
    const methods = path === "/metrics" ? ["GET"] : ["GET", "HEAD"];
    if (!methods.includes(request.method ?? ""))
      return send(405, "text/plain", `${methods.join(" and ")} only\n`, { allow: methods.join(", ") });
    answer().then(
      (reply) => send(...reply),
      (thrown: unknown) => send(500, "text/plain", `${thrown instanceof Error ? thrown.message : String(thrown)}\n`),
    );
  };
}

// The metrics of all worker processes as one: current values of the living, the last values of the dead, and the
// supervisor's own, which alone reads the store.

export class FleetMetrics {
  readonly #own = new (promClient().Registry)();
  /** One sum, however many have ended and whether or not anything scrapes. */
  #ofEnded: Promise<MetricsSnapshot> = lasting([]);

  /** `early`: events emitted during the supervisor's own open. */
  constructor(engine: Engine, early: readonly EngineEvent[]) {
    attachMetrics(engine, { registry: this.#own, early });
  }

  /** Its last snapshot stays in the sums. What can't be added is omitted. */
  addEnded({ latest }: Child): void {
    if (latest) this.#ofEnded = this.#ofEnded.then((sum) => lasting([sum, latest]).catch(() => sum));
  }

  async text(children: readonly Child[]): Promise<string> {
    const [own, ended, ...living] = await Promise.all([
      this.#own.getMetricsAsJSON(),
      this.#ofEnded,
      ...children.map((child) => child.metrics()),
    ]);
    return aggregatedText([own, ended, ...living.filter((snapshot) => snapshot !== null)]);
  }
}
