// Connections: undici's agents, one for each way of connecting, behind a connector of our own. The connector checks every address that a name has, every
// literal (a `lookup` hook is never asked about one), and the address that a socket really has, before a byte is written. Node's own `blockList` is
// not used: `tls.connect` ignores it (Node 24.21 and 26.9). None of undici's interceptors is used.
import { isIP, type LookupFunction } from "node:net";
import { createSecureContext, rootCertificates, type SecureContext } from "node:tls";
import { callbackify } from "node:util";
import type * as Undici from "undici";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { Addresses, addressRefused } from "./addresses.ts";
import type { ConnectionSettings } from "./contract.ts";
import type { Address, Resolver } from "./resolver.ts";
import type { Secrets } from "./secrets.ts";

export type { Dispatcher } from "undici";

/** An idle connection is closed after this long; servers that close theirs sooner say so. */
const KEEP_ALIVE_MS = 4_000;
const MAX_HEADERS = 16 << 10;

export class Connections {
  readonly #resolver: Resolver;
  readonly #secrets: Secrets;
  readonly #agents = new Map<string, Promise<Undici.Dispatcher>>();
  readonly #known = new WeakMap<ConnectionSettings, Promise<Undici.Dispatcher>>();
  #made = new WeakMap<ConnectionSettings, Undici.Dispatcher>();
  readonly #opening: () => void;

  /** `opening` is called for each connection that is opened, unless each request has its own. */
  constructor(resolver: Resolver, secrets: Secrets, opening: () => void = () => {}) {
    this.#resolver = resolver;
    this.#secrets = secrets;
    this.#opening = opening;
  }

  /** The dispatcher for these settings, if it is there already. */
  made(settings: ConnectionSettings): Undici.Dispatcher | undefined {
    return this.#made.get(settings);
  }

  /** The dispatcher for these settings, which is made once. */
  of(settings: ConnectionSettings): Promise<Undici.Dispatcher> {
    const known = this.#known.get(settings);
    if (known) return known;
    const name = JSON.stringify(settings);
    let agent = this.#agents.get(name);
    if (!agent) {
      agent = this.#make(settings);
      this.#agents.set(name, agent);
      // A secret that is missing now may be there next time.
      agent.catch(() => {
        this.#agents.delete(name);
        this.#known.delete(settings);
      });
    }
    agent.then(
      (made) => this.#made.set(settings, made),
      () => {},
    );
    this.#known.set(settings, agent);
    return agent;
  }

  /** Makes it before the first request needs it, unless secrets have to be asked for. What fails here fails the request that needs it. */
  prepare(settings: ConnectionSettings): void {
    if (settings.cert === null && settings.key === null) this.of(settings).catch(() => {});
  }

  async close(): Promise<void> {
    const agents = await Promise.allSettled(this.#agents.values());
    this.#agents.clear();
    this.#made = new WeakMap();
    await Promise.allSettled(agents.flatMap((one) => (one.status === "fulfilled" ? [one.value.destroy()] : [])));
  }

  async #make(settings: ConnectionSettings): Promise<Undici.Dispatcher> {
    const undici = await loadUndici();
    const { http2, fresh, proxy, connectMs } = settings;
    const secureContext = await this.#secureContext(settings);
    const common = {
      // 0: no connection is used twice.
      pipelining: fresh && !http2 ? 0 : 1,
      keepAliveTimeout: KEEP_ALIVE_MS,
      maxHeaderSize: MAX_HEADERS,
    };
    if (proxy !== null)
      // The proxy resolves and connects: what it may reach is its own rule.
      return new undici.ProxyAgent({
        ...common,
        allowH2: http2,
        uri: proxy,
        // To the proxy, its response to CONNECT, and TLS through it: each may take this long.
        connectTimeout: connectMs,
        clientFactory: (origin, options) => new undici.Pool(origin, { ...options, headersTimeout: connectMs }),
        requestTls: { secureContext },
        proxyTls: { secureContext },
      });
    // The pools know it and not the agent, which would make a key of a text of its own for each request.
    const factory = (origin: string | URL, options: object): Undici.Pool =>
      new undici.Pool(origin, { ...options, allowH2: http2 });
    return new undici.Agent({ ...common, factory, connect: this.#connector(undici, settings, secureContext) });
  }

  #connector(
    { buildConnector }: typeof Undici,
    { addresses: rule, connectMs, http2, fresh, localAddress }: ConnectionSettings,
    secureContext: SecureContext,
  ): Undici.buildConnector.connector {
    const addresses = new Addresses(rule);
    const allowed = callbackify((host: string, family: number) => this.#allowed(addresses, host, family));
    const lookup: LookupFunction = (host, options, done) => {
      allowed(host, options.family === 4 || options.family === 6 ? options.family : 0, (error, found) => {
        if (error) return done(error, "");
        if (options.all) return done(null, [...found]);
        done(null, found[0]!.address, found[0]!.family);
      });
    };
    const connect = buildConnector({
      lookup,
      secureContext,
      allowH2: http2,
      ...(http2 && { preferH2: true }),
      timeout: connectMs,
      ...(localAddress !== null && { localAddress }),
    });
    return (options, done) => {
      if (!fresh) this.#opening();
      const host = options.hostname.replace(/^\[|\]$/g, "");
      if (isIP(host) !== 0 && !addresses.allows(host, host)) return done(addressRefused(host, host), null);
      connect(options, (error, socket) => {
        if (error) return done(error, null);
        const address = socket.remoteAddress ?? "";
        if (addresses.allows(address, host)) return done(null, socket);
        socket.destroy();
        done(addressRefused(host, address), null);
      });
    };
  }

  /** The addresses of a name that may be reached; never none. */
  async #allowed(addresses: Addresses, host: string, family: number): Promise<readonly Address[]> {
    const found = await this.#resolver.resolve(host);
    const wanted = family === 0 ? found : found.filter((one) => one.family === family);
    const good = wanted.filter(({ address }) => addresses.allows(address, host));
    if (good.length > 0) return good;
    throw found.length > 0 ? addressRefused(host, found[0]!.address) : notFound(host);
  }

  /** One for all connections of these settings: a context of its own costs a connection 50 KB. */
  async #secureContext({ ca, cert, key }: ConnectionSettings): Promise<SecureContext> {
    return createSecureContext({
      minVersion: "TLSv1.2",
      ...(ca.length > 0 && { ca: [...rootCertificates, ...ca] }),
      ...(cert && { cert: await this.#secrets.value(cert) }),
      ...(key && { key: await this.#secrets.value(key) }),
    });
  }
}

function notFound(host: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${host} has no address`), { code: "ENOTFOUND" });
}

async function loadUndici(): Promise<typeof Undici> {
  try {
    return await import("undici");
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "Requests need the package `undici`, which is not installed.",
      "Run `npm install undici` in this program.",
      {},
      { cause: thrown },
    );
  }
}
