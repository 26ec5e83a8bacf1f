{{/* Applies the changes .from to .into: null removes a key, maps are merged, and lists whose key has a
     "+" are merged by the names of their elements. Any other value is replaced. */}}
{{- define "gpu-turnstile.merge" -}}
{{- range $key, $new := .from }}
{{- if kindIs "invalid" $new }}
{{- $_ := unset $.into $key }}
{{- else if kindIs "map" $new }}
{{- if not (kindIs "map" (get $.into $key)) }}
{{- $_ := set $.into $key dict }}
{{- end }}
{{- include "gpu-turnstile.merge" (dict "into" (get $.into $key) "from" $new) }}
{{- else if hasSuffix "+" $key }}
{{- $list := get $.into (trimSuffix "+" $key) | default list }}
{{- range $element := $new }}
{{- $found := dict }}
{{- range $list }}
{{- if eq .name $element.name }}
{{- $found = . }}
{{- end }}
{{- end }}
{{- if hasKey $element "$patch" }}
{{- $list = without $list $found }}
{{- else }}
{{- if not $found }}
{{- $list = append $list $found }}
{{- end }}
{{- include "gpu-turnstile.merge" (dict "into" $found "from" $element) }}
{{- end }}
{{- end }}
{{- $_ := set $.into (trimSuffix "+" $key) $list }}
{{- else }}
{{- $_ := set $.into $key $new }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Applies the values for one workload, and for all. Some variables come from other values, or are
     references to the pod. */}}
{{- define "gpu-turnstile.set" -}}
{{- $pod := .workload.spec.template.spec }}
{{- range $container := concat $pod.containers ($pod.initContainers | default list) }}
{{- $name := $container.name | camelcase | untitle }}
{{- with $given := get $.values $name }}
{{- $_ := set $container "resources" $given.resources }}
{{- if and $given.replicas (has $container $pod.containers) }}
{{- $_ := set $.workload.spec "replicas" $given.replicas }}
{{- end }}
{{- range $key, $value := $given.env }}
{{- if regexMatch "^(NODE_NAME|GPU_TURNSTILE_(DOMAIN|ENFORCEMENT|INJECT|(PROXY_)?MODE|KUBELET_DIR|[A-Z]+_(ACCEPT|NAMESPACE|ADDRESS|REPLICAS|KUBE_SCHEDULER_LEASE)))$" $key }}
{{- fail (printf "%s.env.%s: Forbidden: other values of the chart, or the pod, decide it" $name $key) }}
{{- end }}
{{- $variable := dict "name" $key "value" (include "gpu-turnstile.setting" (dict "key" $key "value" $value)) }}
{{- include "gpu-turnstile.merge" (dict "into" $container "from" (dict "env+" (list $variable))) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key := has .workload.kind (list "Deployment") | ternary (list "imagePullSecrets" "nodeSelector" "tolerations") (list "imagePullSecrets") }}
{{- with get $.values $key }}
{{- $_ := set $pod $key . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The value .value of the variable .key as text. YAML reads on and off without quotes as booleans. */}}
{{- define "gpu-turnstile.setting" -}}
{{- if and (kindIs "bool" .value) (hasPrefix "GPU_TURNSTILE_" .key) -}}
{{ ternary "on" "off" .value }}
{{- else -}}
{{ toString .value }}
{{- end -}}
{{- end -}}

{{/* The text .text, with each placeholder replaced by its value. */}}
{{- define "gpu-turnstile.filled-in" -}}
{{- $values := .root.Values }}
{{- $version := .root.Chart.AppVersion }}
{{- $image := include "gpu-turnstile.image" (dict "given" $values.image "instead" $values.image "tag" $version) }}
{{- $proxy := include "gpu-turnstile.image" (dict "given" $values.proxyImage "instead" $values.image "tag" $version) }}
{{- /* The cluster's version as kube-scheduler's images have it: without what providers add. */}}
{{- $kubernetes := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .root.Capabilities.KubeVersion.Version }}
{{- $own := $values.kubeSchedulerImage }}
{{- $scheduler := include "gpu-turnstile.image" (dict "given" $own "instead" $own "tag" $kubernetes) }}
{{- .text | replace "@image@" $image | replace "@proxyImage@" $proxy | replace "@kubeSchedulerImage@" $scheduler
    | replace "@system@" $values.namespaces.system | replace "@node@" $values.namespaces.node | replace "@domain@" $values.domain
    | replace "@accept@" (join "," $values.dialects.accept)
    | replace "@kubeletDir@" $values.kubeletDir | replace "@containerdDir@" $values.containerdDir }}
{{- end -}}

{{/* An image: an empty part of .given is taken from .instead, an empty tag from .tag. */}}
{{- define "gpu-turnstile.image" -}}
{{- $named := .instead -}}
{{- if or .given.tag .given.digest -}}{{- $named = .given -}}{{- end -}}
{{- $repository := .given.repository | default .instead.repository -}}
{{- if $named.digest -}}
{{ $repository }}@{{ $named.digest }}
{{- else -}}
{{ $repository }}:{{ $named.tag | default .tag }}
{{- end -}}
{{- end -}}
