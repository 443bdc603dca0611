{{/* What a schema can't say about values that must fit together. Each message names the value and the fix. */}}
{{- define "warm-vllm.checks" -}}
{{- $values := .Values }}
{{- $owned := dict
      "--model" "set model.name"
      "--served-model-name" "set model.servedName"
      "--port" "set engine.port"
      "--host" "the engine listens on all addresses of its pod"
      "--api-key" "set apiKey.existingSecret; who may read pods reads their arguments"
      "--no-enable-prefix-caching" "cached prefixes are what this chart is for"
      "--enable-scale-out" "it opens a route that takes raw engine arguments"
      "--kv-events-config" "set kvEvents"
      "--kv-offloading-size" "set offload.sizeGiB"
      "--shutdown-timeout" "set drain.shutdownTimeoutSeconds"
}}
{{- if .Values.warming.enabled }}
{{- $_ := set $owned "--scheduler-cls" "the pin plugin is loaded by it; set warming.enabled=false to use another scheduler" }}
{{- end }}
{{- range $index, $argument := .Values.engine.extraArgs }}
  {{- $flag := splitList "=" $argument | first | replace "_" "-" }}
  {{- with get $owned $flag }}
    {{- fail (printf "engine.extraArgs[%d]: %s is not allowed here: %s" $index $flag .) }}
  {{- end }}
{{- end }}
{{- range $index, $variable := .Values.engine.env }}
  {{- if and (eq $variable.name "VLLM_API_KEY") $values.warming.enabled }}
    {{- fail (printf "engine.env[%d]: VLLM_API_KEY is not allowed here; use apiKey.existingSecret, so that the sidecar gets it too" $index) }}
  {{- end }}
{{- end }}
{{- if not (or .Values.engine.image.tag .Values.engine.image.digest) }}
  {{- fail "engine.image: set a tag or a digest" }}
{{- end }}
{{- if .Values.kvEvents.enabled }}
  {{- $folder := include "warm-vllm.engine.kvEventsFolder" . }}
  {{- $replay := include "warm-vllm.engine.kvEventsReplay" . }}
  {{- if and (hasPrefix "ipc://" $replay) (ne (trimPrefix "ipc://" $replay | dir) $folder) }}
    {{- fail "kvEvents.replayEndpoint: put its socket into the folder of kvEvents.endpoint's" }}
  {{- end }}
  {{- if and $folder (include "warm-vllm.explicit" .) (eq (include "warm-vllm.engine.user" .) "0") }}
    {{- fail "kvEvents.endpoint: only root could open the socket of an engine that runs as root; set podSecurityContext.runAsUser to another user" }}
  {{- end }}
  {{- $port := int .Values.kvEvents.blocksPort }}
  {{- if and $port .Values.warming.enabled }}
    {{- if or (eq $port 8090) (eq $port (int .Values.engine.port)) }}
      {{- fail (printf "kvEvents.blocksPort: %d is the port of the %s; choose another one, or 0" $port (eq $port 8090 | ternary "sidecar's probes" "engine")) }}
    {{- end }}
    {{- if and (ne $port 8091) (not (include "warm-vllm.explicit" .)) }}
      {{- fail "kvEvents.blocksPort: injected sidecars have 8091; set warming.mode=template to choose another one" }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $gpus := get (.Values.resources.limits | default dict) "nvidia.com/gpu" }}
{{- if $gpus }}
  {{- if lt (int $gpus) (int .Values.engine.tensorParallelSize) }}
    {{- fail (printf "engine.tensorParallelSize is %d, but resources.limits gives a pod %d nvidia.com/gpu: raise the limit" (int .Values.engine.tensorParallelSize) (int $gpus)) }}
  {{- end }}
{{- end }}
{{- $drain := add .Values.drain.preStopSeconds .Values.drain.shutdownTimeoutSeconds }}
{{- if le (int .Values.drain.terminationGracePeriodSeconds) (int $drain) }}
  {{- fail (printf "drain.terminationGracePeriodSeconds is %d, but preStopSeconds and shutdownTimeoutSeconds are %d together: raise it above" (int .Values.drain.terminationGracePeriodSeconds) $drain) }}
{{- end }}
{{- if and (eq .Values.rollout.strategy "RollingUpdate") (regexMatch "^0%?$" (toString .Values.rollout.maxSurge)) (regexMatch "^0%?$" (toString .Values.rollout.maxUnavailable)) }}
  {{- fail "rollout.maxSurge and rollout.maxUnavailable are both 0: no update could begin; raise one" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
  {{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- if .Values.podDisruptionBudget.enabled }}
  {{- $most := ne (toString .Values.podDisruptionBudget.maxUnavailable) "" }}
  {{- $fewest := ne (toString .Values.podDisruptionBudget.minAvailable) "" }}
  {{- if eq $most $fewest }}
    {{- fail "podDisruptionBudget: set exactly one of maxUnavailable and minAvailable, and the other to \"\"" }}
  {{- end }}
{{- end }}
{{- end }}
