// What a job does outside the store, as its process does it: HTTP requests are seen by themselves, everything else is told with
// `effect`. Each is a line in an append-only file, there before the process can die of what comes next.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { subscribe } from "node:diagnostics_channel";

const VARIABLE = "OUTLIVE_CRASH_TEST_EFFECTS";

export interface Effect {
  readonly what: string;
  /** The idempotency key that it carried: the same one twice is one effect to a receiver that honours it. */
  readonly key: string | null;
}

/** For a job under `crashTest`: says that an effect outside the store happens now. Does nothing elsewhere. */
export function effect(what: string, options: { readonly key?: string } = {}): void {
  write({ what, key: options.key ?? null });
}

export function environment(file: string): NodeJS.ProcessEnv {
  return { [VARIABLE]: file };
}

export function readEffects(file: string): Effect[] {
  if (!existsSync(file)) return [];
  return readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Effect);
}

/** Writes down every request that goes out by `fetch` or by `node:http`. Reading ones too: whether they matter, the user knows. */
export function watchRequests(): void {
  subscribe("undici:request:create", (message) => {
    const { request } = message as {
      request: { method: string; origin: string; path: string; headers: readonly string[] | string };
    };
    const headers = typeof request.headers === "string" ? request.headers.split("\r\n") : request.headers;
    write({ what: `${request.method} ${request.origin}${request.path}`, key: keyOf(headers) });
  });
  subscribe("http.client.request.start", (message) => {
    const { request } = message as {
      request: {
        method: string;
        protocol: string;
        host: string;
        path: string;
        getHeader(name: string): unknown;
      };
    };
    const { method, protocol, host, path } = request;
    const key = request.getHeader("idempotency-key");
    write({ what: `${method} ${protocol}//${host}${path}`, key: typeof key === "string" ? key : null });
  });
}

/** Headers come as names and values by turns, or as lines. */
function keyOf(headers: readonly string[]): string | null {
  for (const [at, header] of headers.entries()) {
    if (header.toLowerCase() === "idempotency-key") return headers[at + 1] ?? null;
    const [, value] = /^idempotency-key:\s*(.*)$/i.exec(header) ?? [];
    if (value !== undefined) return value;
  }
  return null;
}

function write(happened: Effect): void {
  const file = process.env[VARIABLE];
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(happened)}\n`);
}
