"""Run by the interpreter of the clients' own environment, as `clients.py URL KEY`. Told nothing but the address."""

import json
import sys

url, key = sys.argv[1:]
told = {}

import litellm  # noqa: E402

ask = [{"role": "user", "content": "hello"}]
options = {"model": "openai/tiny", "messages": ask, "api_base": url, "api_key": key, "max_tokens": 8, "temperature": 0}
told["litellm"] = litellm.completion(**options).choices[0].message.content
streamed = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, stream=True)]
told["litellm_stream"] = "".join(streamed)
try:
    litellm.completion(**{**options, "api_key": "a-wrong-key"})
except litellm.AuthenticationError:
    told["litellm_error"] = "AuthenticationError"

from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel  # noqa: E402


class City(BaseModel):
    big: bool


chat = ChatOpenAI(model="tiny", base_url=url, api_key=key, max_tokens=8, temperature=0, max_retries=0)
told["langchain"] = chat.invoke("hello").content
told["langchain_stream"] = "".join(chunk.content for chunk in chat.stream("hello"))
longer = ChatOpenAI(model="tiny", base_url=url, api_key=key, max_tokens=60, temperature=0, max_retries=0)
told["langchain_schema"] = longer.with_structured_output(City, method="json_schema").invoke("hello").model_dump()
called = longer.with_structured_output(City, method="function_calling").invoke("hello")
told["langchain_tool"] = called.model_dump()
print(json.dumps(told))
