"""The load test's client: any server with OpenAI's speech API, measured at the socket."""
